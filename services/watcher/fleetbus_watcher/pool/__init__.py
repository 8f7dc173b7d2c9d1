"""A pool of watchers that share the clusters of a fleet.

Membership, leases, the assignment of clusters to members, and the work for each assigned cluster.
"""
