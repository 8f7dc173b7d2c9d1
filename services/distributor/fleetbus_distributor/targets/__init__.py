"""Writes to one target cluster: whose object is it, apply it, correct its drift, or remove it."""
