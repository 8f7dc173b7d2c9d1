"""The client of one API server: requests, lists, watches, discovery, and their formats."""
