"""From the spec of a MultiClusterResource to the objects of each cluster; no I/O."""
