"""Makers of the objects of a generated cluster, and their names and managedFields."""
