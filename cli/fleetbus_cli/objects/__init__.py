"""The objects of every cluster: `fleetbus get`, `describe` and `kubectl multicluster`."""
