"""A `Children` controller in a fleet: parents and children are ConfigMaps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import fleetbus
from fleetbus.ownership import FINALIZER, owner_of
from support.eventually import eventually
from support.full import FULL
from support.rigs.fleet import Rig
from support.rigs.scenario import MAPS, WITHIN

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver import LoggedRequest

Object = dict[str, Any]
OpenRig = Callable[..., Awaitable[Rig]]
LABELS = {"managed": "yes"}
RECHECK = timedelta(seconds=15 if FULL else 0.3)


@dataclass
class ChildrenRig:
    """A controller that gives each managed ConfigMap of `a` one child where its data say."""

    rig: Rig
    controller: fleetbus.Children

    def parent(self, name: str, **data: str) -> Object:
        """Make a parent; `to` names the clusters of its children, by default `b`."""
        metadata = {"name": name, "labels": LABELS, "finalizers": ["example.io/other"]}
        return self.rig.clusters["a"].create(
            MAPS, {"metadata": metadata, "data": {"to": "b"} | data}, "default"
        )

    def has(self, name: str) -> Object | None:
        return self.rig.clusters["a"].get(MAPS, "default", name)

    def children(self, cluster: str, name: str | None = None) -> list[Object]:
        """The config maps of a cluster that have an owner: any, or the parent of this name."""
        objects = self.rig.clusters[cluster].list(MAPS)
        owned = [(owner_of(obj), obj) for obj in objects]
        return [obj for owner, obj in owned if owner and name in (None, owner.name)]

    async def child(self, cluster: str, name: str, **data: str) -> Object:
        """Wait for the only child of a parent in a cluster, with these data."""

        def found() -> Object | None:
            there = self.children(cluster, name)
            if len(there) != 1 or not data.items() <= there[0].get("data", {}).items():
                return None
            return there[0]

        answer = await eventually(found, WITHIN)
        assert answer is not None
        return answer

    async def childless(self, cluster: str, name: str, within: timedelta = WITHIN) -> None:
        await eventually(lambda: not self.children(cluster, name), within)

    def drop_other_finalizer(self, name: str) -> None:
        parent = self.has(name)
        assert parent is not None
        assert "example.io/other" in parent["metadata"]["finalizers"]
        finalizers = [
            finalizer
            for finalizer in parent["metadata"]["finalizers"]
            if finalizer != "example.io/other"
        ]
        self.rig.clusters["a"].patch(
            MAPS, "default", name, {"metadata": {"finalizers": finalizers}}
        )

    def is_held(self, name: str) -> bool:
        parent = self.has(name)
        return bool(parent and FINALIZER in parent["metadata"].get("finalizers", []))

    def writes(self, cluster: str) -> list[LoggedRequest]:
        """The writes of the controller on a cluster's ConfigMaps, in order."""
        return [
            request
            for request in self.rig.clusters[cluster].requests
            if request.verb in ("create", "update", "patch", "delete")
            and request.user_agent.startswith("fleetbus")
            and "/configmaps" in request.path
        ]


def household(rig: Rig, **options: Any) -> ChildrenRig:
    """A household whose controller is not started yet."""
    chosen: dict[str, Any] = {
        "parents": MAPS,
        "parent_clusters": ["a"],
        "parent_selector": "managed=yes",
        "children": MAPS,
        "child_clusters": ["b", "c"],
        "recheck": RECHECK,
        **options,
    }
    controller = fleetbus.Children("maps", **chosen)
    home = ChildrenRig(rig, controller)

    @controller.desired
    async def _desired(
        parent: Object, cluster: str, _fleet: fleetbus.Fleet
    ) -> list[fleetbus.Child]:
        name = fleetbus.child_name(parent, cluster)
        data: Mapping[str, str] = parent.get("data", {})
        child: Object = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "default"},
            "data": {"value": data.get("value", "")},
        }
        clusters = [one for one in data.get("to", "").split(",") if one]
        return [fleetbus.Child(one, child) for one in clusters]

    @controller.propagate
    async def _propagate(
        _parent: Object, children: Sequence[fleetbus.Child], _fleet: fleetbus.Fleet
    ) -> Object:
        answers = {
            f"from-{child.cluster}": child.problem or child.object["data"].get("answer")
            for child in children
        }
        return {"data": answers}

    return home


async def start(rig: Rig, **options: Any) -> ChildrenRig:
    """A household in which everything runs."""
    home = household(rig, **options)
    rig.start_reconciler(home.controller)
    for name in rig.clusters:
        rig.start_watcher(name)
    await rig.synced("core/configmaps")
    return home
