"""The parts that reconciler authors and services build on.

A module enters only if two services use it, or users do.
The names below are loaded when they are first used, so that a process that needs only a part
pays only for that part (the watcher must not even load Redis).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleetbus import predicates
    from fleetbus.children.controller import Children
    from fleetbus.children.policy import Child
    from fleetbus.clusters.info import ClusterInfo
    from fleetbus.controller.controller import Controller
    from fleetbus.decorator import Decorator
    from fleetbus.errors import (
        AlreadyExists,
        ClusterNotFound,
        ConfigError,
        Conflict,
        FleetbusError,
        Forbidden,
        IncompleteObject,
        Invalid,
        KubeError,
        LeaseLostError,
        MalformedOwner,
        NeverAwaited,
        NotAccepted,
        NotEngaged,
        NotFound,
        NotSynced,
        RunStopped,
        SnapshotBehind,
        StoreError,
        Unreachable,
    )
    from fleetbus.finalizers import has_finalizer
    from fleetbus.fleet.cached_reads import ClusterObject
    from fleetbus.fleet.cluster import Cluster
    from fleetbus.fleet.fleet import Fleet
    from fleetbus.kube.client import KubeClient, Object
    from fleetbus.ownership import (
        Owner,
        child_name,
        is_owned_by,
        label_value,
        own,
        owner_of,
        set_owner,
    )
    from fleetbus.reconcile import Request, Result, TerminalError
    from fleetbus.run.current import Run, current_run
    from fleetbus.snapshot.records import Freshness
    from fleetbus.workqueue.queue import Backoff

__all__ = [
    "AlreadyExists",
    "Backoff",
    "Child",
    "Children",
    "Cluster",
    "ClusterInfo",
    "ClusterNotFound",
    "ClusterObject",
    "ConfigError",
    "Conflict",
    "Controller",
    "Decorator",
    "Fleet",
    "FleetbusError",
    "Forbidden",
    "Freshness",
    "IncompleteObject",
    "Invalid",
    "KubeClient",
    "KubeError",
    "LeaseLostError",
    "MalformedOwner",
    "NeverAwaited",
    "NotAccepted",
    "NotEngaged",
    "NotFound",
    "NotSynced",
    "Object",
    "Owner",
    "Request",
    "Result",
    "Run",
    "RunStopped",
    "SnapshotBehind",
    "StoreError",
    "TerminalError",
    "Unreachable",
    "child_name",
    "current_run",
    "has_finalizer",
    "is_owned_by",
    "label_value",
    "own",
    "owner_of",
    "predicates",
    "set_owner",
]

_HOMES: Final = {
    "fleet.cached_reads": ("ClusterObject",),
    "children.policy": ("Child",),
    "children.controller": ("Children",),
    "clusters.info": ("ClusterInfo",),
    "controller.controller": ("Controller",),
    "decorator": ("Decorator",),
    "finalizers": ("has_finalizer",),
    "fleet.cluster": ("Cluster",),
    "fleet.fleet": ("Fleet",),
    "kube.client": ("KubeClient", "Object"),
    "ownership": (
        "Owner",
        "child_name",
        "is_owned_by",
        "label_value",
        "own",
        "owner_of",
        "set_owner",
    ),
    "reconcile": ("Request", "Result", "TerminalError"),
    "run.current": ("Run", "current_run"),
    "snapshot.records": ("Freshness",),
    "workqueue.queue": ("Backoff",),
}
"""Where a name comes from; the others of `__all__` are errors."""
_HOME_OF: Final = dict.fromkeys(__all__, "errors") | {
    name: home for home, names in _HOMES.items() for name in names
}


def __getattr__(name: str) -> object:
    if name == "predicates":
        return importlib.import_module(f"{__name__}.predicates")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
