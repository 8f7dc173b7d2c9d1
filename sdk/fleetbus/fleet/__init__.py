"""The fleet as a reconcile function sees it: cached reads, live reads and writes."""
