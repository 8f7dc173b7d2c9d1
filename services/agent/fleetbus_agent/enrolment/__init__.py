"""The nkey of an agent: kept in its cluster, registered with the hub, rotated by itself."""
