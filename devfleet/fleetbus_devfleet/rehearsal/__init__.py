"""`fleetbus rehearse`: what a MultiClusterResource would do to the fleet, with faults on purpose.

The real services run as processes on emulated copies of the clusters, so nothing here decides what
a rollout does; it is watched. `faults` reads the grammar, `manifest` the MultiClusterResource,
`injection` breaks clusters, `run` is the sequence, and `outcome` is what came of it.
"""
