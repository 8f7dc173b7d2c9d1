"""The types that watchers leave out by default, and how to have them watched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fleetbus.kube.resource_names import with_plural
from fleetbus_proto.resources import CORE, ResourceName

SECRETS: Final = "core/secrets"
DENIED: Final = (
    "core/events",
    "events.k8s.io/events",
    "coordination.k8s.io/leases",
    "core/endpoints",
    "discovery.k8s.io/endpointslices",
)
"""The types that `*` leaves out by default: noisy, and of no use to most controllers."""
_SECRETS_HINT: Final = (
    "Secrets are not watched by default: start the watchers of a cluster with"
    " FLEETBUS_WATCHER_SECRETS=true, or the dev fleet with `fleetbus dev up --secrets`, to publish"
    " the names of their keys, never the values (docs/watcher.md)"
)
_EVENTS_HINT: Final = (
    "Events are not watched by default: to watch warnings, add"
    ' {"resource": "v1/events", "fieldSelector": "type=Warning"} beside "*" to spec.resources of'
    " the Cluster, or to FLEETBUS_WATCHER_RESOURCES of its watchers (docs/watcher.md)"
)
_HINTS: Final[Mapping[str, str]] = {
    SECRETS: _SECRETS_HINT,
    "core/events": _EVENTS_HINT,
    "events.k8s.io/events": _EVENTS_HINT,
}


def how_to_watch(names: Iterable[ResourceName]) -> str:
    """Return how to have a type watched that watchers leave out; empty for any other type.

    Args:
        names: the readings of its name, as a user wrote it.
    """
    for name in map(with_plural, names):
        for key in (SECRETS, *DENIED):
            group, _, plural = key.partition("/")
            if name.plural == plural and name.group in (group, None):
                return _HINTS.get(key) or _denied_hint(group, plural)
    return ""


def _denied_hint(group: str, plural: str) -> str:
    name = f"v1/{plural}" if group == CORE else f"{plural}.{group}"
    return (
        f"{plural} are not watched by default: add {name} to spec.resources of the Cluster, or to"
        " FLEETBUS_WATCHER_RESOURCES of its watchers (docs/watcher.md)"
    )
