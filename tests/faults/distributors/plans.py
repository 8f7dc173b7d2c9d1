"""`fleetbus plan`, and whether the writes that follow are those that it announced (rule D25)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from faults.distributors.history import Write
from faults.distributors.processes import environment_of
from faults.distributors.settings import HUB, NAMESPACE
from faults.distributors.world import World
from fleetbus_distributor.kind import API_VERSION, KIND
from support.processes.programs import installed

Json = dict[str, Any]
Change = tuple[str, str, str, str]
"""Cluster, kind, name, action."""
_STATUSES: Final = (0, 2)


class PlanError(Exception):
    """`fleetbus plan` failed."""


async def plan(world: World, specs: Mapping[str, Json]) -> list[Change]:
    """Plan these MultiClusterResources, as a person would before applying them.

    Raises:
        PlanError: it cannot be planned.
    """
    file = world.folder / "plan.json"
    file.write_text("---\n".join(f"{json.dumps(_manifest(n, s))}\n" for n, s in specs.items()))
    shared = world.rig.shared
    program = await asyncio.create_subprocess_exec(
        *installed("fleetbus", "plan", "-f", str(file), "-o", "json"),
        *("--hub-kubeconfig", str(shared.hub_kubeconfig), "--hub-context", HUB),
        *("--redis-url", str(shared.redis_url)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment_of(shared),
    )
    out, err = await program.communicate()
    if program.returncode not in _STATUSES:
        raise PlanError(f"status {program.returncode}: {err.decode()[-600:]} {out.decode()[-600:]}")
    return sorted(
        (cluster["name"], change["kind"], change["name"], change["action"])
        for shown in json.loads(out)["plans"]
        for cluster in shown["clusters"]
        for change in cluster["objects"]
    )


def _manifest(name: str, spec: Json) -> Json:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def changes_of(writes: list[Write]) -> list[Change]:
    """The writes of distributors, as a plan would show them."""
    first: dict[tuple[str, str, str], Json | None] = {}
    last: dict[tuple[str, str, str], Json | None] = {}
    for write in writes:
        if write.by_distributor:
            key = (write.place.cluster, write.kind, write.name)
            first.setdefault(key, write.before)
            last[key] = write.after
    return sorted((*key, _action(first[key], last[key])) for key in first)


def _action(before: Json | None, after: Json | None) -> str:
    if after is None:
        return "delete"
    return "create" if before is None else "change"


def keep(folder: Path, planned: list[Change], done: list[Change]) -> None:
    """Note both for the checks."""
    path = folder / "plans.json"
    entries: list[Any] = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*entries, {"planned": planned, "done": done}]))
