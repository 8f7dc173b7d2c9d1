"""Reconciles one MultiClusterResource: on all clusters, on a single one, and when it is deleted."""
