"""Follows one resource of one cluster: list, watch, resume, and list again when in doubt.

`resource_watcher` is the loop; each other module is one step of it.
"""
