"""Pods and nodes: where pods go, how they live and misbehave, what nodes do to them."""
