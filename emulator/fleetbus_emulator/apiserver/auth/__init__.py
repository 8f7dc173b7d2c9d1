"""Authentication, authorization, ServiceAccount tokens and the review APIs.

`authenticate` finds the user of a request by `credentials`; `rbac` decides from the cluster's Roles
and bindings, which `bootstrap_roles`, `role_aggregation` and `escalation` keep as Kubernetes does.
"""
