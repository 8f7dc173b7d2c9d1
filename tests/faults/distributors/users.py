"""Actions of people meanwhile: on the hub, and on the targets."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

from faults.distributors.settings import KINDS, MAPS, NAMESPACE, NEW_NAME, TARGETS
from faults.distributors.world import World
from fleetbus.bus.connection import Bus
from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION, MULTI_CLUSTER_RESOURCES, OWNER_UID_LABEL
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_emulator.apiserver import ApiError

Json = dict[str, Any]
PLAIN: Final = tuple(f"m{number}" for number in range(8))
WAVED: Final = ("w0", "w1")
"""MultiClusterResources with a rollout: `t1` first, the others after a vote."""
CANARY: Final = "t1"
_PARTS: Final = ("a", "b", "c", "sa")
_LARGE: Final = "large"
"""One whose inventory is in chunks now and then; nobody else touches it."""
_LARGE_PARTS: Final = ("a", "b", "c", "d", "e", "f", "sa")
_ROLLOUT: Final = {
    "waves": [{"name": "canary", "clusters": [{"name": CANARY}]}],
    "gates": [{"name": "test"}],
    "revisionHistoryLimit": 1,
}


class Users:
    """Seeded actions of people.

    Args:
        world: what they act on.
        bus: for votes.
        random: the choices.
    """

    def __init__(self, world: World, bus: Bus, random: Random) -> None:
        self._world = world
        self._bus = bus
        self._random = random
        self._versions = itertools.count(1)
        self._actions: dict[Callable[[], None], int] = {
            self.edit_templates: 30,
            self.edit_placement: 20,
            self.create: 12,
            self.delete: 7,
            self.suspend: 3,
            self.relabel: 6,
            self.edit_copy: 12,
            self.delete_copy: 12,
            self.place_stranger: 6,
            self.remove_stranger: 3,
            self.confirm: 4,
        }

    async def act(self, count: int = 1) -> None:
        """Some actions; what the servers refuse is passed over."""
        for _ in range(count):
            chosen = self._random.choices([*self._actions], [*self._actions.values()])[0]
            with suppress(ApiError):
                chosen()
            if self._random.random() < 0.4:
                await self.vote(self._random.choice(WAVED))

    async def keep_acting(self, least: float, most: float) -> None:
        """One action after the other, until cancelled."""
        while True:
            await self.act()
            await asyncio.sleep(self._random.uniform(least, most))

    async def provoke(self, point: str) -> None:
        """An action after which a distributor comes to a point between two writes."""
        if "controllerrevisions" in point:
            name = self._random.choice(WAVED)
            self.replace(name, self.spec(name))
            await self.vote(name)
        elif "chunks" in point or "serviceaccounts" in point:
            resource: Json = self.read(_LARGE) or {"spec": {"templates": []}}
            status: Json = resource.get("status") or {}
            if resource.get("metadata", {}).get("generation") != status.get("observedGeneration"):
                return  # two changes in one round might cancel each other out
            is_large = len(resource["spec"]["templates"]) == len(_LARGE_PARTS)
            parts = _LARGE_PARTS[:2] if is_large else _LARGE_PARTS
            version, name = str(next(self._versions)), _LARGE
            templates = [self._template(name, suffix, version) for suffix in parts]
            everywhere = {"clusters": [{"name": cluster} for cluster in TARGETS]}
            self.replace(name, {"templates": templates, "placement": everywhere})
        else:
            await self.act()

    # --- on the hub ---------------------------------------------------------------------------

    def create_all(self) -> None:
        """One of each, to begin with."""
        for name in (*PLAIN, *WAVED):
            self.create(name)

    def create(self, name: str = "") -> None:
        """Create a MultiClusterResource."""
        chosen = name or self._random.choice((*PLAIN, *WAVED))
        if self.read(chosen) is None:
            metadata = {"name": chosen, "namespace": NAMESPACE}
            self._world.hub.create(
                MULTI_CLUSTER_RESOURCES, {"metadata": metadata, "spec": self.spec(chosen)}
            )

    def spec(self, name: str) -> Json:
        """Some spec for one of this name."""
        spec: Json = {"templates": self.templates(name), "placement": self.placement(name)}
        if name in WAVED:
            spec["rollout"] = _ROLLOUT
        return spec

    def templates(self, name: str) -> list[Json]:
        """Some objects; those of a rollout say which version they are of."""
        version = str(next(self._versions))
        chance = self._random.random
        parts = (
            ["a", "b"]
            if name in WAVED
            else [suffix for suffix in _PARTS if chance() < 0.6] or ["a"]
        )
        return [self._template(name, suffix, version) for suffix in parts]

    def _template(self, name: str, suffix: str, version: str) -> Json:
        metadata = {"name": f"{name}-{suffix}", "namespace": NAMESPACE}
        if suffix == "sa":
            return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        data = {"v": version, "where": "${cluster.name}"}
        if suffix == "b":
            data["region"] = "${cluster.labels.region}"
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def placement(self, name: str) -> Json:
        """Some placement."""
        if name in WAVED:
            return {"clusters": [{"name": cluster} for cluster in TARGETS]}
        chance = self._random.random()
        if chance < 0.3:
            label = self._random.choice(({"tier": "a"}, {"tier": "b"}, {"all": "yes"}))
            return {"clusterSelector": {"matchLabels": label}}
        chosen = self._random.sample((*TARGETS, NEW_NAME), self._random.randint(1, 4))
        return {
            "clusters": [{"name": cluster} for cluster in chosen if cluster != NEW_NAME]
            or [{"name": "t2"}]
        }

    def edit_templates(self) -> None:
        """Change what is applied."""
        self._edit(lambda name, spec: spec.update(templates=self.templates(name)))

    def edit_placement(self) -> None:
        """Change where."""
        self._edit(lambda name, spec: spec.update(placement=self.placement(name)))

    def suspend(self) -> None:
        """Suspend a MultiClusterResource, or let it go on."""

        def change(_name: str, spec: Json) -> None:
            policy = spec.setdefault("policy", {})
            policy["suspend"] = not policy.get("suspend", False)

        self._edit(change)

    def _edit(self, change: Callable[[str, Json], None], name: str = "") -> None:
        chosen = name or self._random.choice((*PLAIN, *WAVED))
        resource = self.read(chosen)
        if resource is not None:
            change(chosen, resource["spec"])
            self._world.hub.update(MULTI_CLUSTER_RESOURCES, resource)

    def replace(self, name: str, spec: Json) -> None:
        """Give one another spec, or create it."""
        resource = self.read(name)
        if resource is None:
            metadata = {"name": name, "namespace": NAMESPACE}
            self._world.hub.create(MULTI_CLUSTER_RESOURCES, {"metadata": metadata, "spec": spec})
        else:
            self._world.hub.update(MULTI_CLUSTER_RESOURCES, {**resource, "spec": spec})

    def delete(self, name: str = "") -> None:
        """Delete a MultiClusterResource."""
        self._world.hub.delete(
            MULTI_CLUSTER_RESOURCES, NAMESPACE, name or self._random.choice((*PLAIN, *WAVED))
        )

    def read(self, name: str) -> Json | None:
        """A MultiClusterResource as it is."""
        return self._world.hub.get(MULTI_CLUSTER_RESOURCES, NAMESPACE, name)

    def relabel(self) -> None:
        """Move a cluster to another tier, take its labels away, or give them back."""
        name = self._random.choice(TARGETS)
        key = self._random.choice(("tier", "all", "region"))
        values = {"tier": ("a", "b", None), "all": ("yes", None), "region": (f"r-{name}", None)}
        change: Json = {key: self._random.choice(values[key])}
        self._world.labels(name, **change)

    def confirm(self) -> None:
        """Confirm what is held."""
        for name in (*PLAIN, *WAVED):
            resource: Json = self.read(name) or {}
            status: Json = resource.get("status") or {}
            hold: Json = status.get("held") or {}
            annotations: Json = resource.get("metadata", {}).get("annotations", {})
            if hold and annotations.get(CONFIRM_PRUNE_ANNOTATION) != hold["planHash"]:
                confirmed = {CONFIRM_PRUNE_ANNOTATION: hold["planHash"]}
                patch: Json = {"metadata": {"annotations": confirmed}}
                self._world.hub.patch(MULTI_CLUSTER_RESOURCES, NAMESPACE, name, patch)

    async def vote(self, name: str) -> None:
        """Let the wave of a rollout pass."""
        resource: Json = self.read(name) or {}
        status: Json = resource.get("status") or {}
        rollout: Json = status.get("rollout") or {}
        if not rollout.get("votes"):
            return
        self._world.processes.note("vote", name=name, subject=rollout["votes"])
        for wave in ("canary", "remaining"):
            subject = f"{rollout['votes']}.{wave}.test"
            await self._bus.nc.publish(subject, json.dumps({"vote": "pass"}).encode())

    # --- on the targets -----------------------------------------------------------------------

    def _copies(self) -> list[tuple[str, str, Json]]:
        copies: list[tuple[str, str, Json]] = []
        for server in TARGETS:
            for resource in KINDS.values():
                shared = self._world.rig.clusters[server].shared(resource)
                marked = (o for o in shared if OWNER_UID_LABEL in o["metadata"].get("labels", {}))
                copies += [(server, resource, obj) for obj in marked]
        return copies

    def edit_copy(self) -> None:
        """Change a field of a copy by hand."""
        maps = [copy for copy in self._copies() if copy[1] == MAPS]
        if maps:
            server, resource, obj = self._random.choice(maps)
            name, patch = obj["metadata"]["name"], {"data": {"where": "elsewhere"}}
            cluster = self._world.rig.clusters[server]
            cluster.patch(resource, NAMESPACE, name, patch, manager="kubectl-edit")

    def delete_copy(self) -> None:
        """Delete a copy by hand."""
        if copies := self._copies():
            server, resource, obj = self._random.choice(copies)
            self._world.rig.clusters[server].delete(resource, NAMESPACE, obj["metadata"]["name"])

    def place_stranger(self) -> None:
        """Create an object without our mark that has the name of one of ours."""
        name = f"{self._random.choice(PLAIN)}-{self._random.choice(_PARTS[:3])}"
        server = self._world.rig.clusters[self._random.choice(TARGETS)]
        if server.get(MAPS, NAMESPACE, name) is not None:
            server.delete(MAPS, NAMESPACE, name)
        metadata = {"name": name, "namespace": NAMESPACE}
        server.create(MAPS, {"metadata": metadata, "data": {"stranger": "yes"}})

    def remove_stranger(self) -> None:
        """Delete such an object."""
        for server in TARGETS:
            cluster = self._world.rig.clusters[server]
            for obj in cluster.shared(MAPS):
                if "stranger" in obj.get("data", {}):
                    cluster.delete(MAPS, NAMESPACE, obj["metadata"]["name"])
                    return

    # --- the end ------------------------------------------------------------------------------

    def make_calm(self) -> None:
        """Labels as they were, and nothing suspended."""
        for name in TARGETS:
            if self._world.hub.get(CLUSTER_RESOURCE, None, name):
                tier = "a" if name in TARGETS[:2] else "b"
                self._world.labels(name, tier=tier, all="yes", region=f"r-{name}")
        for name in (*PLAIN, *WAVED):
            with suppress(ApiError):
                self._edit(lambda _name, spec: spec.pop("policy", None), name)

    async def answer_all(self) -> None:
        """Let every rollout go on, and confirm what is held."""
        with suppress(ApiError):
            self.confirm()
        for name in WAVED:
            await self.vote(name)
