"""The feed of the snapshot, followed by one task for all requests."""
