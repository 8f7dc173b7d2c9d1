"""Runs user controllers, and the projector that turns the event stream into the snapshot."""
