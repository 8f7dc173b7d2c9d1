"""Shared by all processes: settings, logs, metrics, health, clock, shutdown."""
