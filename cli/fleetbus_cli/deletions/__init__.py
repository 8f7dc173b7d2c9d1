"""Deletions that wait for confirmation, and orphans: `fleetbus fuse` and `orphans`."""
