"""Kubernetes clusters without Kubernetes: an API server good enough to be wrong on purpose.

`apiserver` serves the Kubernetes API of any number of clusters from one event loop, `controllers`
make Deployments ready and Jobs complete, `generate` fills clusters with objects that look real.
Nothing here imports fleetbus: the emulator is an independent witness of what fleetbus does, and can
be used alone.
"""
