"""Bounds on what one request, one user or one slow reader can cost the process (rule A8)."""
