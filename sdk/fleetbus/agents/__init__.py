"""How agents of clusters are trusted: their nkeys, accounts on NATS, and records on the hub."""
