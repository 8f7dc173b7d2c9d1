"""Records in the key-value bucket through which the hub and the watchers coordinate."""
