"""`fleetbus kubeconfig`: contexts with which kubectl reads the fleet through the query API."""
