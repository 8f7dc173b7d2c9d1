"""The command line: `fleetbus` and the kubectl plugin `kubectl-multicluster`."""
