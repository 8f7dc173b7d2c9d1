"""One run of a reconcile function: what it has read and written, and its guard rails."""
