"""Reads from the status of a MultiClusterResource where it is not well, and why.

The distributor writes there which object of a cluster is not healthy, and which pod keeps it so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fleetbus.kube.json_fields import look, many, text

RESOURCE: Final = "fleetbus.dev/multiclusterresources"
KIND: Final = "MultiClusterResource"
_FINE: Final = ("", "Healthy")
_APPLIED: Final = "Applied"
_CUT: Final = "…"
"""The end of a truncated message."""


def read_troubles(resource: Mapping[str, Any], cluster: str = "") -> list[dict[str, str]]:
    """The troubles of a MultiClusterResource, at most two in a cluster.

    If it has no cluster, the trouble is the reason why it is not ready.

    Args:
        resource: the MultiClusterResource.
        cluster: the only cluster that matters; empty for all.
    """
    entries = many(resource, "status", "clusters")
    if not entries and not cluster:
        return [*_unready(resource)]
    chosen = [entry for entry in entries if cluster in ("", text(entry, "name"))]
    return [trouble for entry in chosen for trouble in _troubles(entry)]


def _unready(resource: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for condition in many(resource, "status", "conditions"):
        if (text(condition, "type"), text(condition, "status")) == ("Ready", "False"):
            yield {
                "cluster": "",
                "object": "",
                "state": "NotReady",
                "reason": text(condition, "reason"),
                "message": text(condition, "message"),
            }


def _troubles(entry: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    name, state, health = text(entry, "name"), text(entry, "state"), text(entry, "health")
    if state != _APPLIED:
        yield {
            "cluster": name,
            "object": "",
            "state": state,
            "reason": text(entry, "reason"),
            "message": text(entry, "message"),
        }
    unhealthy = text(entry, "unhealthy", "message")
    is_repeated = state != _APPLIED and _is_refusal_of(entry, unhealthy)
    if health not in _FINE and look(entry, "unhealthy") and not is_repeated:
        yield {
            "cluster": name,
            "object": text(entry, "unhealthy", "object"),
            "state": health,
            "reason": text(entry, "unhealthy", "reason"),
            "message": unhealthy,
        }


def _is_refusal_of(entry: Mapping[str, Any], unhealthy: str) -> bool:
    """Whether an object is unhealthy because of what the entry says; both may be cut."""
    refusal = f"{text(entry, 'reason')}: {text(entry, 'message')}".removesuffix(_CUT)
    why = unhealthy.removesuffix(_CUT)
    return bool(why) and (refusal.startswith(why) or why.startswith(refusal))
