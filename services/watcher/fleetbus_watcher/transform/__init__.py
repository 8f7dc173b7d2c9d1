"""Turns the API server's bytes into events without what is dropped or redacted.

Pure computation: no I/O, no clock but the event's own timestamp.
"""
