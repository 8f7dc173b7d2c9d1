"""Reads the snapshot, answers over HTTP.

Writes nothing but the Secret, the Cluster and the leave record of a join or an unjoin, and these
with the token of the caller (rule A7); asks API servers only who a user is and what they may read.
"""
