"""The columns of `kubectl get` for each resource, and the cells of an object."""
