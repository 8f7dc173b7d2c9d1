"""One cluster in, events out.

Knows its API server and NATS; never Redis, never another cluster.
Holds no object longer than it takes to publish it.
"""
