"""Bootstrapping a member: from an administrator's access to two limited accounts.

`enroll` joins a cluster with them, `remove` takes them away again. The administrator's kubeconfig
is only used, never stored and never shown. `fleetbus.clusters.account_tokens` makes their tokens.
"""
