"""Answers about the past of the fleet: lists as of a time, deletions, timelines, changes."""
