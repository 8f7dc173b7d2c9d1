"""The workqueues: `fleetbus queue`, `queue retry`, `queue release`, `queue forget`."""
