"""Rolling updates that change which controllers a process has, under load (rules B12, P8, P12).

Two deployments have controllers of their own. An update adds, removes, moves or filters one anew,
or makes its map slow; it goes through, is rolled back, or stops half-way, and replicas are killed
in between. After each one the load stops, and every controller must have run for the last state of
every object that it selects: before the next update, since a process that starts looks at
everything and would make good what was lost.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from fleetbus.worker.backlog import LATE
from fleetbus_devfleet.processes.children import Child, ChildError
from fleetbus_emulator.apiserver import ApiError, Cluster, serve
from support.processes.programs import module
from support.processes.services import Processes

MAPS, PODS = "v1/configmaps", "v1/pods"
SELECTORS: Final = ("", "app=a", "app=b")
KINDS: Final = ("add", "remove", "move", "filter", "slow")
_CONTROLLERS: Final = str(Path(__file__).parents[2] / "scripts" / "rolling_controllers.py")
_OBJECTS: Final = 6
"""That change at a time. The next ones come soon, so that at any moment of an update there are some
whose last change it was."""
_NEXT_AFTER: Final = 0.4
_MOST_OBJECTS: Final = 100
"""Objects of a type in a cluster; the oldest are deleted."""
_LATE: Final = (16, LATE)
"""With few a slow controller skips events, and what it enqueues instead makes good what was lost;
with many it has messages that wait for it alone."""
_READY: Final = timedelta(seconds=90)
_PATIENCE: Final = 90.0
_POLL: Final = 0.3


@dataclass(frozen=True)
class Selection:
    """The watch of a controller.

    Attributes:
        resource: what it watches.
        selector: of labels.
        is_slow: whether its map takes its time.
    """

    resource: str = MAPS
    selector: str = ""
    is_slow: bool = False


Controllers = dict[str, Selection]
Disturb = Callable[[], Coroutine[Any, Any, None]]


async def calm() -> None:
    """Disturb nothing."""


@dataclass
class Rollouts:
    """Two deployments with their processes.

    Attributes:
        services: ways to start processes.
        random: of every choice.
        notes: the file of what the controllers have run for.
        mutation: a rule that the processes are without.
        deployments: the controllers that each is to have.
        running: its processes; those of earlier sets come first.
        filtered: controllers that have ever had a selector.
        ran: the version that a controller has last run for, by controller, resource and object.
        read: bytes of the notes that are in it.
        late: messages that may be late in a process that starts.
    """

    services: Processes
    random: Random
    notes: Path
    mutation: str = ""
    deployments: dict[str, Controllers] = field(
        default_factory=lambda: {
            "one": {"alpha": Selection(), "beta": Selection(selector="app=a")},
            "two": {"gamma": Selection(PODS), "delta": Selection(is_slow=True)},
        }
    )
    running: dict[str, list[Child]] = field(default_factory=lambda: {"one": [], "two": []})
    filtered: set[str] = field(default_factory=lambda: {"beta"})
    ran: dict[tuple[str, str, str], str] = field(default_factory=dict[tuple[str, str, str], str])
    read: int = 0
    late: int = LATE
    starts: int = 0
    kills: int = 0

    def start(self, deployment: str) -> Child:
        self.starts += 1
        controllers = {
            name: {"resource": s.resource, "selector": s.selector, "is_slow": s.is_slow}
            for name, s in self.deployments[deployment].items()
        }
        child = self.services.program(
            f"{deployment}-{self.starts}",
            program(self.mutation, _CONTROLLERS, late=self.late),
            FLEETBUS_RECONCILER_PROJECTOR="false",
            ROLLING_SET=json.dumps(controllers),
            ROLLING_NOTES=str(self.notes),
        )
        self.running[deployment].append(child)
        return child

    async def end(self, deployment: str, children: Sequence[Child]) -> None:
        """Half of them by SIGKILL."""
        for child in children:
            self.running[deployment].remove(child)
            if self.random.random() < 0.5:
                self.kills += 1
                child.kill()
            else:
                await child.stop()

    async def begin(self) -> None:
        """Start two processes of each deployment."""
        await self._ready(*(self.start(name) for name in self.deployments for _ in range(2)))

    async def update(self, kind: str, disturb: Disturb = calm) -> None:
        """Change the controllers of a deployment, and replace its processes: all, or only some."""
        self.late = self.random.choice(_LATE)
        before = {name: dict(controllers) for name, controllers in self.deployments.items()}
        self._change(kind)
        changed = [name for name in before if before[name] != self.deployments[name]]
        for deployment in changed:
            await self._roll(deployment, disturb)
        if self.random.random() < 0.3:  # back again
            self.deployments = before
            for deployment in changed:
                await self._roll(deployment, disturb)

    def kill_one(self) -> None:
        """Kill one process for good, where others go on: no start makes good what it had.

        One with a slow controller, if there is any: it has messages that wait for that one alone.
        """
        choices = [name for name, children in self.running.items() if len(children) > 1]
        slow = [name for name in choices if any(s.is_slow for s in self.deployments[name].values())]
        if not choices:
            return
        children = self.running[self.random.choice(slow or choices)]
        self.kills += 1
        children.pop(self.random.randrange(len(children))).kill()

    def _change(self, kind: str) -> None:
        deployment = self.random.choice(["one", "two"])
        other = "two" if deployment == "one" else "one"
        ours, others = self.deployments[deployment], self.deployments[other]
        name = self.random.choice(sorted(ours))
        match kind:
            case "remove" if len(ours) > 1:
                del ours[name]
            case "move" if len(ours) > 1:
                others[name] = ours.pop(name)
            case "filter":
                choices = [each for each in SELECTORS if each != ours[name].selector]
                ours[name] = replace(ours[name], selector=self.random.choice(choices))
            case "slow":
                ours[name] = replace(ours[name], is_slow=not ours[name].is_slow)
            case _:
                selector, is_slow = self.random.choice(SELECTORS), self.random.random() < 0.3
                ours[f"extra-{self.starts}"] = Selection(MAPS, selector, is_slow)
        self.filtered |= {name for name, selection in ours.items() if selection.selector}

    async def _roll(self, deployment: str, disturb: Disturb) -> None:
        old = list(self.running[deployment])
        if self.random.random() < 0.2:  # first all go, as with the strategy Recreate
            await self.end(deployment, old)
            old = []
        new = [self.start(deployment), self.start(deployment)]
        if self.random.random() < 0.3:  # it does not come up
            await asyncio.sleep(self.random.uniform(0, 3))
            self.running[deployment].remove(new[0])
            new[0].kill()
            new[0] = self.start(deployment)
        disturbing = asyncio.create_task(disturb())
        await self._ready(*new)
        # The old ones read on for a while: what they acknowledge now, no start makes good.
        await asyncio.sleep(self.random.uniform(1, 3))
        await disturbing
        await self.end(deployment, old if self.random.random() < 0.8 else old[:1])
        await asyncio.sleep(self.random.uniform(0, 1))

    async def _ready(self, *children: Child) -> None:
        with suppress(AssertionError, ChildError):  # a fault may keep it from that
            for child in children:
                await self.services.ready(child, _READY)

    def missed(self, clusters: Sequence[Cluster]) -> list[str]:
        """Find the objects whose last state a controller has not run for."""
        self._read_notes()
        return [
            text
            for controllers in self.deployments.values()
            for name, selection in controllers.items()
            for text in self._missed_by(name, selection, clusters)
        ]

    def _read_notes(self) -> None:
        with self.notes.open("rb") as notes:
            notes.seek(self.read)
            for line in notes:
                controller, resource, key, version = json.loads(line)
                self.ran[controller, resource, key] = version
            self.read = notes.tell()

    def _missed_by(
        self,
        controller: str,
        selection: Selection,
        clusters: Sequence[Cluster],
    ) -> list[str]:
        resource, _, label = selection.resource, *selection.selector.rpartition("=")[1:]
        objects = {
            f"{cluster.name}/{obj['metadata']['name']}": obj
            for cluster in clusters
            for obj in cluster.list(resource, "default")
        }
        missed: list[str] = []
        for key, obj in objects.items():
            labels: dict[str, str] = obj["metadata"].get("labels", {})
            version = str(obj["metadata"]["resourceVersion"])
            seen = self.ran.get((controller, resource, key))
            if (not label or labels.get("app") == label) and seen != version:
                missed.append(f"{controller} {key}: {seen!r} of {version!r}")
        # What was deleted counts only where it cannot have left the selection before.
        if controller not in self.filtered:
            missed += [
                f"{controller} {key}: {version!r}, and it is deleted"
                for (name, watched, key), version in self.ran.items()
                if (name, watched) == (controller, resource) and version and key not in objects
            ]
        return missed

    def kill_all(self) -> None:
        for children in self.running.values():
            for child in children:
                child.kill()


class Running(NamedTuple):
    """All that the rolling updates need."""

    clusters: Sequence[Cluster]
    rollouts: Rollouts
    projector: Child


def program(mutation: str, *modules: str, late: int = LATE) -> list[str]:
    """The reconciler service of this campaign, in which so many messages may be late."""
    return module("faults.workers.roller", mutation, str(late), *modules)


@asynccontextmanager
async def changing(clusters: Sequence[Cluster], random: Random) -> AsyncGenerator[None]:
    """Change objects while the block runs."""
    task = asyncio.create_task(_change_objects(clusters, random))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _change_objects(clusters: Sequence[Cluster], random: Random) -> None:
    clock = asyncio.get_running_loop().time
    created: dict[tuple[str, str], deque[str]] = {
        (cluster.name, resource): deque(
            sorted(obj["metadata"]["name"] for obj in cluster.list(resource, "default"))
        )
        for cluster in clusters
        for resource in (MAPS, PODS)
    }
    while True:
        cluster, resource = random.choice(clusters), random.choice([MAPS, MAPS, PODS])
        name = f"o{int(clock() / _NEXT_AFTER) + random.randrange(_OBJECTS)}"
        labels = {"app": random.choice("ab"), "at": f"{time.time():.3f}"}
        body: dict[str, Any] = {"metadata": {"name": name, "labels": labels}}
        if resource == PODS:
            body["spec"] = {"containers": [{"name": "main", "image": "busybox"}]}
        with suppress(ApiError):
            match random.choice(["create", "create", "patch", "patch", "patch", "delete"]):
                case "create":
                    cluster.create(resource, body, "default")
                    created[cluster.name, resource].append(name)
                case "patch":
                    cluster.patch(resource, "default", name, {"metadata": {"labels": labels}})
                case _:
                    cluster.delete(resource, "default", name)
        while len(names := created[cluster.name, resource]) > _MOST_OBJECTS:
            with suppress(ApiError):
                cluster.delete(resource, "default", names.popleft())
        await asyncio.sleep(random.uniform(0, 0.06))


@asynccontextmanager
async def rolling(
    folder: Path, nats_url: str, valkey_url: str, seed: int, mutation: str = ""
) -> AsyncGenerator[Running]:
    """Clusters, watchers, a projector, and two deployments that have not begun."""
    clusters = [Cluster(name, bookmark_interval=timedelta(milliseconds=200)) for name in "ab"]
    async with serve(clusters) as servers:
        kubeconfig = folder / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        services = Processes(folder, kubeconfig, nats_url, valkey_url, [MAPS, PODS])
        rollouts = Rollouts(services, Random(f"rollouts/{seed}"), folder / "notes", mutation)
        rollouts.notes.touch()
        projector = services.program("projector", program(mutation))
        others = [projector, *(services.watcher(cluster.name) for cluster in clusters)]
        try:
            for child in others:
                await services.ready(child, _READY)
            yield Running(clusters, rollouts, projector)
        finally:
            rollouts.kill_all()
            for child in others:
                child.kill()


async def run_updates(
    running: Running, kinds: Sequence[str], disturb: Disturb = calm, patience: float = _PATIENCE
) -> AsyncGenerator[tuple[str, list[str]]]:
    """Yield each update, and what is missed so many seconds after it."""
    clusters, rollouts, _ = running
    load = Random(f"load/{rollouts.random.random()}")
    for kind in ("begin", *kinds):
        async with changing(clusters, load):
            await (rollouts.update(kind, disturb) if kind in KINDS else rollouts.begin())
        if rollouts.random.random() < 0.7:  # at once: no later change makes good what it had
            rollouts.kill_one()
        yield kind, await _settle(running, patience)


async def _settle(running: Running, patience: float) -> list[str]:
    """Wait until nothing is missed; returns what is, once nobody has run for so many seconds."""
    clusters, rollouts, _ = running
    size, deadline = 0, time.monotonic() + patience
    while missed := rollouts.missed(clusters):
        if size != (size := rollouts.notes.stat().st_size):  # on a busy machine it takes long
            deadline = time.monotonic() + patience
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(_POLL)
    return missed


def kinds_of(random: Random, number: int) -> list[str]:
    """Kinds of updates: each one once first, as far as that goes."""
    first = random.sample(KINDS, len(KINDS))
    return [*first, *random.choices(KINDS, k=max(0, number - len(first)))][:number]
