"""Trust in the agents of clusters: their nkeys, accounts on NATS, and records on the hub."""
