"""Captures without a fleet: objects as plain trees, written by the writer of `fleetbus capture`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fleetbus_cli.capture.file import write_capture
from fleetbus_cli.capture.format import (
    CapturedCluster,
    CapturedObject,
    CapturedResource,
    Header,
    Window,
)
from fleetbus_proto.events import Event
from fleetbus_proto.resources import Resource, parse_resource

Object = dict[str, Any]
Placed = tuple[str, str, Object]
"""Cluster, type and object."""
AT = "2026-01-02T03:04:05.000000Z"
_FIRST = ("apiextensions.k8s.io/v1/customresourcedefinitions", "v1/namespaces")
_HUB = "hub"


def write(
    path: Path,
    clusters: Mapping[str, Mapping[str, str]],
    objects: Iterable[Placed] = (),
    events: Iterable[Event] = (),
    *,
    hub: str = _HUB,
    kinds: Mapping[str, str] | None = None,
) -> Path:
    """Write one; `clusters` has the labels by name, `kinds` that of types without an object."""
    placed = sorted(
        objects,
        key=lambda placed_object: (
            _FIRST.index(placed_object[1]) if placed_object[1] in _FIRST else 2
        ),
    )
    kinds_of = dict(kinds or {}) | {gvr: str(obj["kind"]) for _, gvr, obj in placed}
    header = Header(
        captured_at=AT,
        since_seconds=0,
        redacted=[],
        window=Window(start=AT, end=AT, gaps=[]),
        clusters=[
            CapturedCluster(
                name=name,
                labels=dict(labels),
                hub=name == hub,
                server_version="v1.34.0",
                uid=f"uid-of-{name}",
                resources=_resources(name, placed, kinds_of),
            )
            for name, labels in clusters.items()
        ],
    )
    with write_capture(path, force=True) as writer:
        writer.header(header)
        for cluster, gvr, obj in placed:
            writer.object(_captured(cluster, parse_resource(gvr), obj))
        for event in events:
            writer.event(event)
    return path


def _resources(
    cluster: str, placed: Sequence[Placed], kinds: Mapping[str, str]
) -> list[CapturedResource]:
    spaced = {gvr for _, gvr, obj in placed if obj["metadata"].get("namespace")}
    here = {gvr for name, gvr, _ in placed if name == cluster}
    resources = [(parse_resource(gvr), gvr) for gvr in sorted(here | (kinds.keys() - spaced))]
    return [
        CapturedResource(
            group=resource.group,
            version=resource.version,
            plural=resource.plural,
            kind=kinds[gvr],
            namespaced=gvr in spaced,
        )
        for resource, gvr in resources
    ]


def _captured(cluster: str, resource: Resource, obj: Object) -> CapturedObject:
    meta = obj["metadata"]
    return CapturedObject(
        cluster=cluster,
        group=resource.group,
        version=resource.version,
        resource=resource.plural,
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta.get("uid", f"uid-{meta['name']}"),
        resource_version=str(meta.get("resourceVersion", "7")),
        incarnation=1,
        object=msgspec.Raw(json.dumps(obj).encode()),
    )
