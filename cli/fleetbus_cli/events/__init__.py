"""Events of the fleet: `fleetbus events`, and `fleetbus explain` for one object."""
