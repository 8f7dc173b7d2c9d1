"""Reads the snapshot, answers over HTTP.

Writes nothing, and asks API servers only who a user is and what they may read; the commands that
change something, such as `fleetbus join`, write to the hub themselves.
"""
