"""Lists the types that an API server serves, from its discovery, and their objects."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from support.api.conformance_client import PARTIAL_LIST, Api

_DISCOVERY = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
    for version in ("v2", "v2beta1")  # Kubernetes 1.29 has only the second
)

Json = dict[str, Any]


def types_with(api: Api, *verbs: str) -> dict[str, str]:
    """Map the keys of the types that support all of these verbs, like `apps/deployments`, to paths.

    A path is that of the server's preferred version.
    """
    types: dict[str, str] = {}
    for key, path, taken in _served(api):
        if taken >= set(verbs):
            types.setdefault(key, path)
    return types


def _served(api: Api) -> Generator[tuple[str, str, set[str]]]:
    for top in ("/api", "/apis"):
        for group in api.get(top, accept=_DISCOVERY).items:
            name: str = group["metadata"].get("name", "")
            for version in group["versions"]:
                root = "/".join(segment for segment in (top, name, version["version"]) if segment)
                resources: list[Json] = version.get("resources", [])
                for resource in resources:
                    plural = resource["resource"]
                    yield f"{name or 'core'}/{plural}", f"{root}/{plural}", set(resource["verbs"])


def list_metadata(api: Api, path: str) -> list[Json]:
    """The metadata of all objects of a type; empty if the type was removed meanwhile.

    Raises:
        LookupError: the server answers with another status.
    """
    reply = api.get(path, accept=PARTIAL_LIST)
    if reply.status == 404:
        return []
    if reply.status != 200:
        raise LookupError(f"{path}: {reply.status}")
    items: list[Json] = reply.body["items"] or []  # null for none
    return [item["metadata"] for item in items]
