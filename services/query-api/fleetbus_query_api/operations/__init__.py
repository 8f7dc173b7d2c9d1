"""The running of the fleet itself: workqueues, and deletions that wait for a person."""
