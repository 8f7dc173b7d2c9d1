"""Finds out who sends a request, and what they may read (rules A1 to A3)."""
