"""The fleet as a read-only Kubernetes API: `/kube/<cluster>` is a cluster, `/kube/-` all of them.

It translates: paths, parameters and forms of Kubernetes, to what the snapshot has and a user may
read. Objects they may not read return 404 (rule A2), and nothing is written
(rule A7).
"""
