"""A controller built with the SDK like any user's: MultiClusterResource in, applies out."""
