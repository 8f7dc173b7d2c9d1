"""The messages between processes and the names of the places they travel through.

Pure data and computation: no sockets, no clocks, no Kubernetes.
A change here is a protocol change and needs a golden vector.
"""
