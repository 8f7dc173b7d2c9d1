"""A controller built with the SDK: MultiClusterResource in, server-side applies out."""
