"""Which resources of a member are watched and written, from the names that people write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from fleetbus.clusters.membership import NotPossible
from fleetbus.kube.client import KubeClient
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.kube.json_fields import string
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import Resource, parse_resource_name

ALL: Final = "*"
SECRETS: Final = "core/secrets"
NOISY: Final = frozenset(
    {
        *("core/events", "events.k8s.io/events", "coordination.k8s.io/leases"),
        *("core/endpoints", "discovery.k8s.io/endpointslices"),
    }
)
"""Resources that a watcher's `*` leaves out by default; here too, and Secrets with them."""
_COMPUTED: Final = frozenset({"metrics.k8s.io", "authorization.k8s.io", "authentication.k8s.io"})


async def resolve_watched(member: KubeClient, names: Iterable[Any]) -> tuple[Resource, ...]:
    """The resources that these entries of a watch spec mean; `*` means all that are served now.

    Raises:
        NotPossible: one is not served, or cannot be watched.
        KubeError: discovery is not available.
    """
    by_key: dict[str, Resource] = {}
    for entry in names:
        text = entry if isinstance(entry, str) else string(entry, "resource")
        if text == ALL:
            served = await member.discovery.resources()
            resources = [api.resource for api in served if _is_in_all(api)]
        else:
            resources = [await _find(member, text, to_watch=True)]
        for resource in resources:
            by_key.setdefault(resource.key, resource)
    return tuple(sorted(by_key.values()))


async def resolve_written(member: KubeClient, names: Sequence[str]) -> tuple[Resource, ...]:
    """The resources that these names mean; each may end with /status or /scale.

    Raises:
        NotPossible: one is not served, or is a wildcard.
        KubeError: discovery is not available.
    """
    by_key: dict[str, Resource] = {}
    for text in names:
        name, subresource = _split(text)
        if name == ALL:
            raise NotPossible("'*' cannot be written: name each resource")
        resource = await _find(member, name)
        resource = resource._replace(plural=resource.plural + subresource)
        by_key.setdefault(resource.key, resource)
    return tuple(sorted(by_key.values()))


def _split(text: str) -> tuple[str, str]:
    for subresource in ("/status", "/scale"):
        if text.endswith(subresource):
            return text.removesuffix(subresource), subresource
    return text, ""


async def _find(member: KubeClient, text: str, *, to_watch: bool = False) -> Resource:
    """The resource that the cluster serves under a name; a full name may be of a CRD to come."""
    try:
        api = await member.discovery.by_name(text)
        name = parse_resource_name(text)[0]
    except InvalidName as e:
        raise NotPossible(str(e)) from e
    if api is not None:
        if to_watch and not api.is_watchable:
            raise NotPossible(f"{text!r} cannot be watched: the cluster cannot list and watch it")
        return api.resource
    # The group of a CRD is a domain: all others are built in, and served or not.
    if name.group is None or name.version is None or "." not in name.group:
        raise NotPossible(
            f"the cluster does not serve {text!r}; a type that will be added later needs group"
            " and version, like example.com/v1/widgets"
        )
    return Resource(name.group, name.version, name.plural)


def _is_in_all(api: ApiResource) -> bool:
    key, group = api.resource.key, api.resource.group
    is_denied = key in NOISY or key == SECRETS or group in _COMPUTED
    return api.is_watchable and api.preferred and not is_denied
