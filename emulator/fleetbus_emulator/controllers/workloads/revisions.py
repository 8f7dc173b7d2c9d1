"""ControllerRevisions: the templates that a StatefulSet or a DaemonSet has had."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fleetbus_emulator.apiserver.json_tree import mapping
from fleetbus_emulator.controllers.owners import labels_of, owner_reference
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import uid_of
from fleetbus_emulator.controllers.runtime.world import World
from fleetbus_emulator.controllers.workloads.rollout import template_hash, without_hash

JsonObject = dict[str, Any]
APPS = "apps"
REVISIONS = "apps/v1/controllerrevisions"
REVISION_LABEL = "controller-revision-hash"
HASH_LABEL = "controller.kubernetes.io/hash"


def template_of(revision: JsonObject) -> JsonObject:
    """The pod template that a revision keeps."""
    template = mapping(revision, "data", "spec", "template")
    return {name: value for name, value in template.items() if name != "$patch"}


def hash_of(revision: JsonObject) -> str:
    """The hash in a revision's name."""
    return str(labels_of(revision).get(HASH_LABEL) or "")


def data_of(template: JsonObject) -> JsonObject:
    """The data of a revision: the pod template."""
    return {"spec": {"template": {**template, "$patch": "replace"}}}


class Revisions:
    """Keeps the revisions of the objects of one controller."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def _of(self, owner: Ref) -> list[Ref]:
        uid = uid_of(self._view[owner])
        refs = self._view.controlled(uid, APPS, "controllerrevisions")
        return sorted(refs, key=self._number)

    def _number(self, ref: Ref) -> int:
        return int(self._view[ref].get("revision") or 0)

    def find(self, owner: Ref, name: str) -> JsonObject | None:
        """The revision of this name, if it is one of the owner's."""
        revisions = (self._view[ref] for ref in self._of(owner) if ref.name == name)
        return next(revisions, None)

    def present(self, owner: Ref) -> JsonObject:
        """The revision of the owner's present template.

        Created if it is new; if it is one of the past, it becomes the latest again.
        """
        data = data_of(self._view[owner]["spec"]["template"])
        refs = self._of(owner)
        latest = self._number(refs[-1]) if refs else 0
        same = [ref for ref in refs if self._view[ref].get("data") == data]
        if not same:
            return self._create(owner, data, latest + 1)
        if self._number(same[-1]) != latest:
            self._world.patch(same[-1], {"revision": latest + 1})
        return self._view[same[-1]]

    def _create(self, owner: Ref, data: JsonObject, number: int) -> JsonObject:
        obj = self._view[owner]
        template = without_hash(obj["spec"]["template"])
        collisions = 0
        while True:
            digest = template_hash(template, collisions)
            ref = Ref(APPS, "controllerrevisions", owner.namespace, f"{owner.name}-{digest}")
            if ref not in self._view:
                break
            collisions += 1
        labels = {**labels_of(template), HASH_LABEL: digest}
        owners = [owner_reference(obj)]
        names = {"name": ref.name, "namespace": ref.namespace}
        meta = {**names, "labels": labels, "ownerReferences": owners}
        self._world.create(REVISIONS, {"metadata": meta, "data": data, "revision": number})
        return self._view[ref]

    def trim(self, owner: Ref, live: Collection[str]) -> None:
        """Delete the oldest revisions that nothing uses, beyond spec.revisionHistoryLimit."""
        idle = [ref for ref in self._of(owner) if ref.name not in live]
        limit = mapping(self._view[owner], "spec").get("revisionHistoryLimit", 10)
        for ref in idle[: max(0, len(idle) - limit)]:
            self._world.delete(ref, policy="Background")
