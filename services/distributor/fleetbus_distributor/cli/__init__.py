"""Commands that the distributor adds to `fleetbus`."""
