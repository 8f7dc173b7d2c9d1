"""Reads the snapshot, answers over HTTP.

Writes nothing and calls no cluster; the commands that change something, such as `fleetbus join`,
write to the hub themselves.
"""
