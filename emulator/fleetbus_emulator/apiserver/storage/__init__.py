"""The storage of one cluster in memory: objects, revisions, event log and ground truth."""
