"""Announces changes as Kubernetes Events on the hub and as messages on the bus."""
