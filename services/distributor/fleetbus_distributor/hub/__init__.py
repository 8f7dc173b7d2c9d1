"""The MultiClusterResource on the hub: its status, its finalizer and its Kubernetes Events."""
