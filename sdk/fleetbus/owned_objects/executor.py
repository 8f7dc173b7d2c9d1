"""Carries out what was decided about an object, under preconditions that the server checks.

What was decided about one object is never done to another that took its name meanwhile, and a
deletion is never carried out on an object that has changed since: it may be protected, or no longer
ours, by now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from fleetbus.errors import Conflict
from fleetbus.kube.client import KubeClient, Object
from fleetbus.owned_objects.force import ForcePolicy, conflicts, is_forced
from fleetbus_proto.resources import Resource

ONLY_CREATE: Final = "1"
"""No object has this resourceVersion (etcd's first write gets 2): an apply that carries it creates,
and fails where somebody else created the object since it was looked for."""


class Writer(Protocol):
    """Whoever sends the writes: a `KubeClient`, or a `Cluster` that tracks them for its run."""

    def apply(
        self, resource: Resource, obj: Object, *, field_manager: str, force: bool
    ) -> Awaitable[Object]:
        """Server-side apply."""
        ...

    def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str
    ) -> Awaitable[bool]:
        """Delete under preconditions; False if there was nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObject:
    """The place of one object of ours in a cluster.

    Attributes:
        reads: reads live, and sends dry runs.
        writes: sends the writes.
        resource: the type.
        namespace: "" for a cluster-scoped object.
        name: of the object.
        manager: our field manager.
        force: which fields an apply takes from other managers.
        note: called with the configuration and the answer of each apply.
    """

    reads: KubeClient
    writes: Writer
    resource: Resource
    namespace: str
    name: str
    manager: str
    force: ForcePolicy
    note: Callable[[Object, Object], None]

    async def read(self) -> Object | None:
        """Read the object live; see `KubeClient.get`."""
        return await self.reads.get(self.resource, self.namespace, self.name)

    async def create(self, configuration: Object) -> Object:
        """Create the object by an apply.

        Raises:
            Conflict: it exists; it is as it was.
        """
        return await self._apply(configuration, {"resourceVersion": ONLY_CREATE}, force=False)

    async def apply(self, configuration: Object, live: Object) -> Object:
        """Apply to this very object, once more with force if the conflict allows that (rule D6).

        Raises:
            Conflict: another manager keeps a field, or another object has the name.
        """
        force = is_forced(self.force, (), live, self.manager)
        try:
            return await self._apply(configuration, _uid_of(live), force=force)
        except Conflict as error:
            if force or not is_forced(self.force, conflicts(error), live, self.manager):
                raise
        return await self._apply(configuration, _uid_of(live), force=True)

    async def try_apply(self, configuration: Object, live: Object, *, force: bool) -> Object:
        """The object as one apply would make it, by a dry run.

        Raises:
            Conflict: another manager holds a field, or another object has the name.
        """
        return await self.reads.apply(
            self.resource,
            _with(configuration, _uid_of(live)),
            field_manager=self.manager,
            force=force,
            dry_run=True,
        )

    async def _apply(
        self, configuration: Object, precondition: dict[str, str], *, force: bool
    ) -> Object:
        body = _with(configuration, precondition)
        applied = await self.writes.apply(
            self.resource, body, field_manager=self.manager, force=force
        )
        self.note(configuration, applied)
        return applied

    async def remove(self, live: Object) -> bool:
        """Delete the object; False while its finalizers keep it; raises as `delete_exactly`."""
        await delete_exactly(self.writes, self.resource, live)
        after = await self.read()
        return after is None or after["metadata"]["uid"] != live["metadata"]["uid"]


async def delete_exactly(writes: Writer, resource: Resource, live: Object) -> bool:
    """Delete an object if it still is as it was read; False if it was gone (rule D5).

    Raises:
        Conflict: it has changed since, or another object has its name.
    """
    metadata = live["metadata"]
    return await writes.delete(
        resource,
        metadata.get("namespace") or "",
        metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
    )


def _uid_of(live: Object) -> dict[str, str]:
    return {"uid": live["metadata"]["uid"]}


def _with(configuration: Object, precondition: dict[str, str]) -> Object:
    return {**configuration, "metadata": configuration["metadata"] | precondition}
