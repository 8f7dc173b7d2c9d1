"""Which resources of a cluster are watched: the watch spec, and types that come and go."""
