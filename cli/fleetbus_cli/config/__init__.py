"""Which fleet the command line talks to: `fleetbus config view`, and the lines of `-v`."""
