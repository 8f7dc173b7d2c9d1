"""Reads of the snapshot: one object, lists, pages. Bodies are never decoded."""
