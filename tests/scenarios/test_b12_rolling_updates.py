"""Updates that change which controllers a process has lose nothing for any of them (rules B12, P8).

Processes of two deployments come and go under load, with controllers added, removed, moved between
the deployments and filtered anew, forward and back; some are killed before the update is through.
At the end every controller has run for the last state of every object that it selects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.apiserver import ApiError, Cluster, serve
from support.eventually import eventually
from support.full import FULL
from support.processes.services import Processes

MAPS, PODS = "v1/configmaps", "v1/pods"
MODULE: Final = str(Path(__file__).parents[1] / "scripts" / "rolling_controllers.py")
OBJECTS: Final = 6
"""That change at a time. The next ones come soon, so that at any moment of an update there are some
whose last change it was."""
NEXT_AFTER: Final = 0.4
STEPS: Final = 12 if FULL else 5
SEEDS: Final = (1, 2, 3) if FULL else (1,)
SELECTORS: Final = ("", "app=a", "app=b")
Sets = dict[str, dict[str, str]]


def watch(resource: str = MAPS, selector: str = "") -> dict[str, str]:
    return {"resource": resource, "selector": selector}


@dataclass
class Rollouts:
    """Two deployments with controllers, each of some processes.

    Attributes:
        sets: the controllers that each deployment is to have.
        running: its processes; those of earlier sets come first.
    """

    services: Processes
    notes: Path
    random: Random
    sets: dict[str, Sets] = field(
        default_factory=lambda: {
            "one": {"alpha": watch(), "beta": watch(selector="app=a")},
            "two": {"gamma": watch(PODS)},
        }
    )
    running: dict[str, list[Child]] = field(default_factory=lambda: {"one": [], "two": []})
    started: dict[str, Sets] = field(default_factory=dict[str, Sets])
    count: int = 0

    def start(self, deployment: str) -> None:
        self.count += 1
        child = self.services.reconciler(
            f"{deployment}-{self.count}",
            MODULE,
            projector=False,
            ROLLING_SET=json.dumps(self.sets[deployment]),
            ROLLING_NOTES=str(self.notes),
        )
        self.started[child.name] = dict(self.sets[deployment])
        self.running[deployment].append(child)

    async def end(self, child: Child) -> None:
        """By SIGKILL or SIGTERM."""
        if self.random.random() < 0.5:
            child.kill()
        else:
            await child.stop()

    async def step(self) -> None:
        """Change the set of a deployment, and replace its processes: all, or only some."""
        deployment = self.random.choice(["one", "two"])
        other = "two" if deployment == "one" else "one"
        before = dict(self.sets[deployment])
        self.change(deployment, other)
        for name in (deployment, other):
            if self.started[self.running[name][-1].name] != self.sets[name]:
                await self.roll(name)
        if self.random.random() < 0.3 and self.sets[deployment].keys() == before.keys():
            self.sets[deployment] = before  # back again, perhaps half-way
            await self.roll(deployment)

    def change(self, deployment: str, other: str) -> None:
        ours, theirs = self.sets[deployment], self.sets[other]
        match self.random.choice(["add", "remove", "move", "filter", "filter"]):
            case "add":
                ours[f"extra-{self.count}"] = watch(selector=self.random.choice(SELECTORS))
            case "remove" if any(name.startswith("extra") for name in ours):
                del ours[next(name for name in ours if name.startswith("extra"))]
            case "move" if len(ours) > 1:
                name = self.random.choice(sorted(ours))
                theirs[name] = ours.pop(name)
            case _:
                name = self.random.choice(sorted(ours))
                resource = ours[name]["resource"]
                ours[name] = watch(resource, self.random.choice(SELECTORS))

    async def roll(self, deployment: str) -> None:
        old = list(self.running[deployment])
        self.start(deployment)
        new = self.running[deployment][-1]
        await asyncio.sleep(self.random.uniform(0, 4))
        if self.random.random() < 0.3:  # it does not come up
            self.running[deployment].remove(new)
            await self.end(new)
            self.start(deployment)
            new = self.running[deployment][-1]
        if self.random.random() < 0.6:
            with suppress(AssertionError):
                await self.services.ready(new)
        for child in old if self.random.random() < 0.8 else old[:1]:
            self.running[deployment].remove(child)
            await self.end(child)

    async def settle(self) -> None:
        """Only processes of the last sets are left."""
        for deployment in self.sets:
            old = self.running[deployment]
            self.running[deployment] = []
            self.start(deployment)
            for child in old:
                await self.end(child)

    async def aclose(self) -> None:
        for children in self.running.values():
            for child in children:
                child.kill()


async def change_objects(cluster: Cluster, random: Random) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        resource = random.choice([MAPS, MAPS, PODS])
        name = f"o{int((loop.time() - begun) / NEXT_AFTER) + random.randrange(OBJECTS)}"
        labels = {"app": random.choice("ab"), "at": str(random.random())}
        body: dict[str, Any] = {"metadata": {"name": name, "labels": labels}}
        if resource == PODS:
            body["spec"] = {"containers": [{"name": "main", "image": "busybox"}]}
        with suppress(ApiError):
            match random.choice(["create", "create", "patch", "patch", "patch", "delete"]):
                case "create":
                    cluster.create(resource, body, "default")
                case "patch":
                    cluster.patch(resource, "default", name, {"metadata": {"labels": labels}})
                case _:
                    cluster.delete(resource, "default", name)
        await asyncio.sleep(random.uniform(0, 0.1))


def missed(cluster: Cluster, rollouts: Rollouts) -> list[str]:
    """Find the objects whose last state a controller has not run for."""
    last: dict[tuple[str, str, str], str] = {}
    for line in rollouts.notes.read_text().splitlines():
        controller, resource, name, version = json.loads(line)
        last[controller, resource, name] = version
    found: list[str] = []
    for controller, options in (rollouts.sets["one"] | rollouts.sets["two"]).items():
        resource, selector = options["resource"], options["selector"]
        names = {one["metadata"]["name"] for one in cluster.list(resource, "default")}
        names |= {name for _, noted, name in last if noted == resource}
        for name in sorted(names):
            obj = cluster.get(resource, "default", name)
            seen = last.get((controller, resource, name))
            labels: dict[str, str] = obj["metadata"].get("labels", {}) if obj else {}
            is_selected = not selector or labels.get("app") == selector.partition("=")[2]
            version = str(obj["metadata"]["resourceVersion"]) if obj else ""
            # What was deleted counts only where it cannot have left the selection before.
            is_due = is_selected if obj else bool(seen) and not selector
            if is_due and seen != version:
                found.append(f"{controller} {resource} {name}: {seen!r} of {version!r}")
    return found


@asynccontextmanager
async def rolling(
    folder: Path, nats_url: str, valkey_url: str, seed: int
) -> AsyncGenerator[tuple[Cluster, Rollouts]]:
    cluster = Cluster("a", bookmark_interval=timedelta(milliseconds=200))
    async with serve([cluster]) as servers:
        kubeconfig = folder / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        services = Processes(folder, kubeconfig, nats_url, valkey_url, [MAPS, PODS])
        rollouts = Rollouts(services, folder / "notes", Random(seed))
        rollouts.notes.touch()
        others = [services.reconciler("projector"), services.watcher("a")]
        try:
            for child in others:
                await services.ready(child)
            yield cluster, rollouts
        finally:
            await rollouts.aclose()
            for child in others:
                child.kill()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.longer
async def test_b12_updates_that_change_the_set_of_controllers_lose_nothing(
    tmp_path: Path, nats_url: str, valkey_url: str, seed: int
) -> None:
    async with rolling(tmp_path, nats_url, valkey_url, seed) as (cluster, rollouts):
        loading = asyncio.create_task(change_objects(cluster, Random(f"load/{seed}")))
        try:
            for deployment in rollouts.sets:
                rollouts.start(deployment)
            await asyncio.sleep(2)
            for _ in range(STEPS):
                await rollouts.step()
            await rollouts.settle()
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        await eventually(lambda: not missed(cluster, rollouts), timedelta(seconds=90))
