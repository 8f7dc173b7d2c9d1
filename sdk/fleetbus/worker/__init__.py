"""From the queue to the reconcile function and back: the ladder, and what hosts it."""
