"""The clusters of the fleet as the projector sees them.

Their records in the snapshot, the status of their Cluster objects on the hub, their accepted UIDs,
and what their watchers are asked for through the key-value bucket.
"""
