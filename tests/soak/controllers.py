"""The controllers of a soak: two that record the last state that they saw, one that copies.

What a recorder saw of an object is the content of a file, so that its state is bounded like the
number of objects, and the driver reads it without asking anybody. Every run is also a line of the
journal of its process, which tells afterwards whether a run is missing or was undone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fleetbus

MAPS = "v1/configmaps"
ACCOUNTS = "v1/serviceaccounts"
LABEL = "soak.fleetbus.dev/part"
SOURCES = f"{LABEL}=source"
COPIES = "copies"
"""The namespace of the copies."""
FOLDER = "SOAK_FOLDER"
"""The environment variable with the folder of the recorders."""

Reconcile = Callable[[fleetbus.Request, fleetbus.Fleet], Awaitable[None]]


def path_of(folder: Path, recorder: str, cluster: str, name: str) -> Path:
    """Where a recorder writes which version of an object it saw."""
    return folder / recorder / cluster / name


def _note(recorder: str, request: fleetbus.Request, version: str) -> None:
    folder = Path(os.environ[FOLDER]) / "journals"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{recorder}-{os.getpid()}.tsv").open("a") as journal:
        print(f"{time.time():.3f}", request.cluster, request.name, version, sep="\t", file=journal)


def _recorder(name: str, resource: str) -> tuple[fleetbus.Controller, Reconcile]:
    controller = fleetbus.Controller(name)
    controller.watch(resource, namespaces=["default"], selector=SOURCES)

    async def record(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        cluster = fleet.cluster(request.cluster)
        obj = await cluster.get(resource, request.namespace, request.name)
        path = path_of(Path(os.environ[FOLDER]), name, request.cluster, request.name)
        _note(name, request, obj["metadata"]["resourceVersion"] if obj else "gone")
        if obj is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(obj["metadata"]["resourceVersion"])
        partial.replace(path)

    controller.reconcile(record)
    return controller, record


maps, _ = _recorder("soak-maps", MAPS)
accounts, _ = _recorder("soak-accounts", ACCOUNTS)

copier = fleetbus.Controller("soak-copier")
copier.watch(MAPS, namespaces=["default"], selector=SOURCES)


@copier.reconcile
async def copy(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    cluster = fleet.cluster(request.cluster)
    source = await cluster.get(MAPS, request.namespace, request.name)
    if source is None:
        live = await cluster.live.get(MAPS, COPIES, request.name)
        if live is not None and await cluster.live.get(MAPS, "default", request.name) is None:
            await cluster.delete(MAPS, COPIES, request.name, uid=live["metadata"]["uid"])
        return
    await cluster.apply(MAPS, copy_of(source), field_manager="soak", force=True)


def copy_of(source: dict[str, Any]) -> dict[str, Any]:
    """The copy of a config map."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": source["metadata"]["name"],
            "namespace": COPIES,
            "labels": {LABEL: "copy"},
        },
        "data": source["data"],
    }
