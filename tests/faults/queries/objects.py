"""The parts of a served object that clients and API servers are compared by."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import orjson

from faults.queries.settings import WEB, ClientPlan

_CLUSTER: Final = "fleetbus.dev/cluster"
_LEFT_OUT: Final = (_CLUSTER, "kubectl.kubernetes.io/last-applied-configuration")
_OF_THE_SERVER: Final = ("resourceVersion", "managedFields", "selfLink")
"""Versions are the snapshot's; the others the watcher leaves out."""

Tree = dict[str, Any]


class Seen(NamedTuple):
    """One object, as it was seen.

    Attributes:
        uid: empty if nothing but its name is known.
        number: of the write; a later one of the same name is higher. 0 if unknown.
        digest: of everything in it that is the cluster's.
        is_web: whether the selector matches it.
    """

    uid: str
    number: int
    digest: str
    is_web: bool


Objects = dict[str, Seen]
"""By `<cluster>/<namespace>/<name>`."""


def seen_of(tree: Tree) -> Seen:
    """An object of a list or an event, however the client renders it."""
    metadata: Tree = tree.get("metadata") or {}
    labels: dict[str, str] = metadata.get("labels") or {}
    data: dict[str, str] = tree.get("data") or {}
    name, _, value = WEB.partition("=")
    return Seen(
        metadata.get("uid", ""), int(data.get("n", 0)), _digest(tree), labels.get(name) == value
    )


def key_of(tree: Tree, cluster: str = "") -> str:
    """`<cluster>/<namespace>/<name>`; in an answer of the fleet the object names its cluster."""
    metadata = tree["metadata"]
    cluster = cluster or metadata["annotations"][_CLUSTER]
    return f"{cluster}/{metadata.get('namespace', '')}/{metadata['name']}"


def version_of(tree: Tree) -> int:
    """The version of the snapshot; 0 without one."""
    return int(tree["metadata"].get("resourceVersion") or 0)


def selected(objects: Objects, plan: ClientPlan) -> Objects:
    """Those that a client has to have."""
    return {
        key: state
        for key, state in objects.items()
        if key.partition("/")[0] in plan.clusters and (state.is_web or not plan.selector)
    }


def _digest(tree: Tree) -> str:
    metadata = {k: v for k, v in tree["metadata"].items() if k not in _OF_THE_SERVER}
    annotations: Tree = metadata.pop("annotations", None) or {}
    metadata["annotations"] = {k: v for k, v in annotations.items() if k not in _LEFT_OUT}
    created: str = metadata.get("creationTimestamp", "")
    metadata["creationTimestamp"] = created.replace("+00:00", "Z")  # as Python writes times
    content = {k: v for k, v in tree.items() if k not in ("apiVersion", "kind", "metadata")}
    content_of_object = {"metadata": {k: v for k, v in metadata.items() if v}}
    content_of_object |= {k: v for k, v in content.items() if v}
    return hashlib.sha256(orjson.dumps(content_of_object, option=orjson.OPT_SORT_KEYS)).hexdigest()[
        :16
    ]
