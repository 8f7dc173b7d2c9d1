"""Lists of objects, of the present or the past: pages, counts, and differences of clusters."""
