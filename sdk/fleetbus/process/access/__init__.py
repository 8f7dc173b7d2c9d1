"""Addresses of NATS and the store, and the files to log in with."""
