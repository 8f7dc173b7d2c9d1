"""Answers questions about the fields of all objects: selectors, order, counts.

The store has no index of fields. Columns of their values are read from the bodies on the first
question, kept within a byte bound, and brought up to date by the feed before each answer.
"""
