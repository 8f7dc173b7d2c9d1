"""Connections to Redis or Valkey for the snapshot and the queues."""
