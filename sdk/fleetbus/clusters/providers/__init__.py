"""Providers: where the desired set of clusters comes from."""
