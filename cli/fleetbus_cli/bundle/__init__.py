"""`fleetbus doctor --bundle FILE`: what a maintainer needs for a bug report, without secrets."""
