"""The types of a cluster: which are served, and how each is defaulted, validated and converted.

`builtin` lists the built-in types, `served` finds a type by its path, `strategy` is what a write
does differently from one type to the next.
"""
