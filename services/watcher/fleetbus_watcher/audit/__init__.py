"""Audits: periodic lists of object identities that the projector compares with the snapshot."""
