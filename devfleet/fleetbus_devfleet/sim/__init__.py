"""Simulated controllers: Deployments become ready, Jobs complete, garbage is collected."""
