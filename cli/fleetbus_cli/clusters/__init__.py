"""The members of the fleet: `fleetbus clusters`, `join` and `unjoin`."""
