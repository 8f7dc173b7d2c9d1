"""Reads of the snapshot: single objects, lists, pages. Bodies are never decoded."""
