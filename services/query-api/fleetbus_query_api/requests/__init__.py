"""Parts of a request: its user, its path below /kube, its parameters."""
