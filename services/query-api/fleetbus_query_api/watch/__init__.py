"""Follows the feed of the snapshot, and sends its changes to those who watch (rules A5, A6)."""
