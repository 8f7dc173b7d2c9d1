"""Providers: the sources of the desired set of clusters."""
