"""Live reads whose None is a proof (rule R6)."""

from __future__ import annotations

from fleetbus.errors import NotFound
from fleetbus.fleet import Cluster
from fleetbus.kube.client import Object, path_of
from fleetbus_proto.resources import Resource


async def read_live(
    cluster: Cluster, resource: Resource, namespace: str, name: str
) -> Object | None:
    """Read one object from its API server; None only if the server says that it does not exist.

    `KubeClient.get` also answers None for a type that is not served; but a type may be away for a
    while, with its API server or its definition, and its objects may come back with it.

    Raises:
        NotFound: the server does not serve the type.
        KubeError: the server refused, or did not answer.
    """
    try:
        return await cluster.live.get_json(path_of(resource, namespace, name))
    except NotFound as e:
        if e.reason == "NotFound" and e.details.get("name") == name:
            return None
        raise
