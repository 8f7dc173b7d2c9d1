"""The fleet as reconcile functions see it: reads from the snapshot, live reads, and writes."""
