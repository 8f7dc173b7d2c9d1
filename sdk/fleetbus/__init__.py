"""What a reconciler author or a service is built from.

A module enters only if two services use it, or users do.
"""
