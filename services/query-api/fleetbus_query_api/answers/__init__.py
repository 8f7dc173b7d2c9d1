"""Requests to answers: parameters are parsed, the snapshot is read, and the result is rendered."""
