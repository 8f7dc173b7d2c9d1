"""Reads the snapshot, answers over HTTP.

Writes nothing but the Secret and the Cluster of join and unjoin, with the caller's rights.
"""
