"""What happened: `fleetbus events`, and `fleetbus explain` for one object."""
