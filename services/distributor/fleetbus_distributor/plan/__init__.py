"""Which objects are applied, pruned or held: decided before anything is written to a cluster."""
