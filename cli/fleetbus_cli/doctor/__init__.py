"""`fleetbus doctor`: checks NATS, the store and the clusters, and says what to do."""
