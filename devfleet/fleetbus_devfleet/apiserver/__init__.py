"""A Kubernetes API server good enough to be wrong on purpose.

Imports nothing of fleetbus, so that it stays an independent witness.
"""
