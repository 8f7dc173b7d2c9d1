"""The projector: applies the event stream to the snapshot and repairs what the stream has lost.

It sweeps finished epochs, evaluates audits, frees tombstones, and drops scopes that nobody watches.
"""
