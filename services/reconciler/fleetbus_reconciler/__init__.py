"""Runs user reconcilers, and the projector.

The projector turns the event stream into the snapshot and sweeps finished epochs.
"""
