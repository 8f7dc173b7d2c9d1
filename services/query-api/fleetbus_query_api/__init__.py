"""Reads the snapshot, answers.

Writes nothing but the Secret and the Cluster of join and unjoin, with the caller's rights.
"""
