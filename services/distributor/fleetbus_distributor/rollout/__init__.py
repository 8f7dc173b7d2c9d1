"""Brings a new revision to the clusters in waves, each behind its gates (rules D17 to D20)."""
