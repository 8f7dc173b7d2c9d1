"""The columns of a resource: those of an API server's Table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleetbus_query_api.answers.catalog import KnownResource
from fleetbus_query_api.tables.builtin import BUILTIN
from fleetbus_query_api.tables.column import AGE, CREATED_AT, NAME, Column

_PLAIN: Final = (NAME, CREATED_AT)
_CUSTOM: Final = (NAME, AGE)

_BUILTIN_GROUPS: Final = frozenset(
    {
        "core",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "internal.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    }
)
"""Their resources without columns of their own show when they were created, as API servers do."""


def columns_of(known: KnownResource) -> Sequence[Column]:
    """Return the columns of a resource as an API server's Table has them, wide ones too.

    CLUSTER and NAMESPACE are not among them: clients add what they need.
    """
    found = BUILTIN.get(known.key)
    if found is not None:
        return found
    return _PLAIN if known.group in _BUILTIN_GROUPS else _CUSTOM
