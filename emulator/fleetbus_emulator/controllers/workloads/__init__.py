"""Workloads: objects that have pods made and replaced, and what is counted of them."""
