"""Parents in some clusters, their children in others."""
