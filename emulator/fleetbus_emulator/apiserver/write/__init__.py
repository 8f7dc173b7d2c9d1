"""Writes: create, update, apply, patch, delete, subresources, and managedFields."""
