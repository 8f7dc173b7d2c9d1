"""Reads: lists and pages, selectors, watches, pod logs."""
