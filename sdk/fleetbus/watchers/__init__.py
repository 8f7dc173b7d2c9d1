"""What the hub and the watchers tell each other through the bucket, beside the events."""
