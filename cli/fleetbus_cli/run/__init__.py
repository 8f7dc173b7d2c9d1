"""Controllers on this machine: `fleetbus run`, and `fleetbus replay` of recorded events."""
