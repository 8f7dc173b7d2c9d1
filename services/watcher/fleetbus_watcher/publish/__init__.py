"""Publishes to NATS: events, heartbeats and checkpoints, and detects when the bus lost some."""
