"""Finds what else is in a namespace before it is deleted with everything in it (rule D10)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.kube.requests import path_of
from fleetbus_distributor.targets.target import Target

_IN_EVERY_NAMESPACE: Final = frozenset(
    {("core", "configmaps", "kube-root-ca.crt"), ("core", "serviceaccounts", "default")}
)
_PASSING: Final = frozenset({("core", "events"), ("events.k8s.io", "events")})


async def find_content(target: Target, namespace: str) -> str:
    """Name an object in a namespace that the cluster did not put there; "" if there is none.

    Of each type two objects are read at most; a type that cannot be read counts as content.

    Raises:
        KubeError: the cluster refuses, or does not answer.
    """
    discovery = target.client.discovery
    types = await discovery.refresh()
    if discovery.failed:
        return f"{', '.join(sorted(discovery.failed))}, which cannot be discovered"
    for api in _listable(types):
        path = path_of(api.resource, namespace)
        found = await target.client.get_json(path, query={"limit": "2"})
        for item in cast("list[dict[str, Any]]", found.get("items") or []):
            name = str(item["metadata"]["name"])
            if (api.resource.group, api.resource.plural, name) not in _IN_EVERY_NAMESPACE:
                return f"{api.kind} {name}"
    await target.client.confirm()  # another cluster's lists would show nothing, too
    return ""


def _listable(types: Iterable[ApiResource]) -> Iterable[ApiResource]:
    """Each type once, whatever versions of it are served."""
    chosen = {
        (api.resource.group, api.resource.plural): api
        for api in types
        if api.namespaced and "list" in api.verbs
    }
    return [api for key, api in sorted(chosen.items()) if key not in _PASSING]
