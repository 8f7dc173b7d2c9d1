"""The rights on the hub that a join or an unjoin takes: asked for before anything is written.

The hub decides about each request anyway; asked first, a caller who lacks one of them leaves
nothing half done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fleetbus.clusters.membership import places_of_secrets
from fleetbus.clusters.providers.cluster import CLUSTERS, SECRETS
from fleetbus.kube.access_reviews import Right, missing_rights
from fleetbus.kube.client import KubeClient, Object
from fleetbus_proto.resources import parse_resource
from fleetbus_query_api.responses.problem import ForbiddenProblem

_CLUSTERS: Final = parse_resource(CLUSTERS)
_SECRETS: Final = parse_resource(SECRETS)
_RECORDS: Final = parse_resource("v1/configmaps")
_NAMESPACES: Final = parse_resource("v1/namespaces")


def rights_to_join(name: str, namespace: str) -> list[Right]:
    """The rights to make a cluster a member."""
    secret = f"{name}-kubeconfig"
    return [
        Right("create", _CLUSTERS),
        Right("list", _CLUSTERS),
        Right("get", _CLUSTERS, name=name),
        Right("create", _SECRETS, namespace),
        Right("get", _SECRETS, namespace, secret),
        Right("delete", _SECRETS, namespace, secret),  # of an interrupted join
        Right("delete", _RECORDS, namespace, f"left-{name}"),
    ]


def rights_to_unjoin(name: str, namespace: str) -> list[Right]:
    """The rights to let a cluster leave, but for those on its Secrets."""
    return [
        Right("get", _CLUSTERS, name=name),
        Right("delete", _CLUSTERS, name=name),
        Right("create", _RECORDS, namespace),
        Right("patch", _RECORDS, namespace, f"left-{name}"),
        Right("get", _NAMESPACES, name="kube-system"),
    ]


def rights_to_secrets(cluster: Object) -> list[Right]:
    """The rights on the Secrets of a Cluster that leaves."""
    return [
        Right(verb, _SECRETS, *place)
        for place in places_of_secrets(cluster)
        if all(place)
        for verb in ("get", "delete")
    ]


async def require(hub: KubeClient, rights: Iterable[Right]) -> None:
    """Require rights of the user of a client.

    Raises:
        ForbiddenProblem: some are missing; nothing was written.
        KubeError: the hub refused, or did not answer.
    """
    if missing := await missing_rights(hub, rights):
        raise ForbiddenProblem(f"you lack rights on the hub: {'; '.join(map(str, missing))}")
