"""Writes to one cluster, and records the writes in the run.

Later reads wait until the snapshot shows them (rule R5), and a write that would change nothing is
not sent (rule R10). Of an object as the snapshot shows it, which may lack fields, only the changes
are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final, cast

import orjson

from fleetbus.errors import Conflict, Invalid, NotFound
from fleetbus.finalizers import finalizers_of, has_finalizer, with_finalizer, without_finalizer
from fleetbus.fleet.cached_reads import CachedReads
from fleetbus.fleet.partial_objects import change_of, lists_in, refuse_marks, require_same
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.trees import read_tree
from fleetbus.process import metrics
from fleetbus.run.current import ObjectRef, current_run
from fleetbus_proto.resources import Resource

_HASH_BYTES: Final = 16


class TrackedWrites:
    """Writes through a client and records the writes in the current run, if there is one.

    Args:
        cluster: its name.
        live: its API server.
        cached: its objects in the snapshot, to compare with.
    """

    def __init__(self, cluster: str, live: KubeClient, cached: CachedReads) -> None:
        self._cluster = cluster
        self._live = live
        self._cached = cached

    async def create(self, resource: Resource, obj: Object) -> Object:
        """See `Cluster.create`."""
        self._refuse_marks(obj)
        return self._note(resource, await self._live.create(resource, obj))

    async def update(self, resource: Resource, obj: Object) -> Object:
        """See `Cluster.update`."""
        metadata = obj["metadata"]
        version = str(metadata.get("resourceVersion") or "")
        if not version:
            raise Invalid(0, "Invalid", "metadata.resourceVersion is required")
        cached = await self._shown(self._ref(resource, metadata), version)
        if cached is None:
            self._refuse_marks(obj)
            return self._note(resource, await self._live.update(resource, obj))
        if cached == obj and current_run() is not None:
            self._count_unsent()
            return obj
        if "managedFields" in metadata and "managedFields" not in cached["metadata"]:
            # It was read live, so no field is missing.
            self._refuse_marks(obj)
            return self._note(resource, await self._live.update(resource, obj))
        return await self._update_shown(resource, cached, obj)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Object | Sequence[Object],
        *,
        subresource: str,
    ) -> Object:
        """See `Cluster.patch`."""
        self._refuse_marks(patch)
        ref = ObjectRef(self._cluster, resource.key, namespace, name)
        sent = _hash("patch", ref, subresource, patch)
        if unchanged := await self._unchanged(ref, sent):
            return unchanged
        answer = await self._patched(resource, ref, patch, subresource)
        return self._note(resource, answer, sent)

    async def apply(
        self, resource: Resource, obj: Object, *, field_manager: str, force: bool
    ) -> Object:
        """See `Cluster.apply`."""
        self._refuse_marks(obj)
        ref = self._ref(resource, obj["metadata"])
        sent = _hash("apply", ref, f"{field_manager} {force}", obj)
        if unchanged := await self._unchanged(ref, sent):
            return unchanged
        answer = await self._live.apply(resource, obj, field_manager=field_manager, force=force)
        return self._note(resource, answer, sent)

    async def add_finalizer(self, resource: Resource, obj: Object, finalizer: str) -> Object:
        """See `Cluster.add_finalizer`."""
        if has_finalizer(obj, finalizer):
            return obj
        live = await self._same_live(resource, obj)
        if live is None:
            name = obj["metadata"]["name"]
            raise Conflict(0, "Conflict", f"{name!r} was deleted or replaced since it was read")
        return await self._set_finalizers(resource, live, with_finalizer(live, finalizer))

    async def remove_finalizer(self, resource: Resource, obj: Object, finalizer: str) -> None:
        """See `Cluster.remove_finalizer`."""
        live = await self._same_live(resource, obj) if has_finalizer(obj, finalizer) else None
        if live is None:
            return
        with suppress(NotFound):  # somebody else let it go in between
            await self._set_finalizers(resource, live, without_finalizer(live, finalizer))

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str
    ) -> bool:
        """See `Cluster.delete`."""
        was_there = await self._live.delete(
            resource, namespace, name, uid=uid, resource_version=resource_version
        )
        if run := current_run():
            ref = ObjectRef(self._cluster, resource.key, namespace, name)
            run.note_write(ref, "", uid, is_deleted=True)
        return was_there

    async def _same_live(self, resource: Resource, obj: Object) -> Object | None:
        """The object as its API server has it now; None if it is gone, or another has its name.

        The watcher may not show all finalizers, and the list is written whole.
        """
        ref = self._ref(resource, obj["metadata"])
        live = await self._live.get(resource, ref.namespace, ref.name)
        is_same = live is not None and live["metadata"]["uid"] == obj["metadata"]["uid"]
        return live if is_same else None

    async def _set_finalizers(
        self, resource: Resource, live: Object, finalizers: Sequence[str]
    ) -> Object:
        metadata = live["metadata"]
        if finalizers == finalizers_of(live):
            return live
        # Whoever changes the list meanwhile changes the version, so that nobody's name is lost.
        patch = with_preconditions(
            {"metadata": {"finalizers": finalizers}}, metadata["uid"], metadata["resourceVersion"]
        )
        ref = self._ref(resource, metadata)
        return await self.patch(resource, ref.namespace, ref.name, patch, subresource="")

    async def _shown(self, ref: ObjectRef, version: str) -> Object | None:
        """The object as the snapshot shows it, if that has this version and a body."""
        entry = await self._cached.entry(ref)
        if entry is None or entry.resource_version != version or not entry.body or entry.degraded:
            return None
        return cast("Object", read_tree(entry.body))

    async def _update_shown(self, resource: Resource, cached: Object, obj: Object) -> Object:
        change = change_of(cached, obj)
        self._refuse_marks(change)
        metadata = cached["metadata"]
        ref, version = self._ref(resource, metadata), str(metadata["resourceVersion"])
        if lists := lists_in(change, cached):
            live = await self._live.get(resource, ref.namespace, ref.name)
            # The server refuses the patch if the object has another version by now.
            if live is not None and live["metadata"]["resourceVersion"] == version:
                require_same(lists, cached, live)
        patch = with_preconditions(change, str(metadata["uid"]), version)
        return self._note(resource, await self._patched(resource, ref, patch))

    async def _patched(
        self,
        resource: Resource,
        ref: ObjectRef,
        patch: Object | Sequence[Object],
        subresource: str = "",
    ) -> Object:
        try:
            return await self._live.patch(
                resource, ref.namespace, ref.name, patch, subresource=subresource
            )
        except Invalid as e:
            if not _is_about_uid(e):
                raise
            # For a wrong uid in a patch some servers answer Invalid, others Conflict.
            raise Conflict(e.status, "Conflict", e.message, e.details) from e

    def _note(self, resource: Resource, answer: Object, sent: bytes = b"") -> Object:
        if run := current_run():
            metadata = answer["metadata"]
            version = str(metadata["resourceVersion"])
            run.note_write(self._ref(resource, metadata), version, str(metadata["uid"]))
            if sent:
                run.applied[sent] = version
        return answer

    async def _unchanged(self, ref: ObjectRef, sent: bytes) -> Object | None:
        """The object, if exactly this was sent before and nothing has changed since (rule R10)."""
        run = current_run()
        version = run and (run.applied.get(sent) or run.earlier.get(sent))
        if run is None or not version:
            return None
        cached = await self._shown(ref, version)
        if cached is not None:
            run.applied[sent] = version
            self._count_unsent()
        return cached

    def _refuse_marks(self, body: Object | Sequence[Object]) -> None:
        # A dry run knows no other values; its writes are shown and not sent.
        if not self._live.shows_marks:
            refuse_marks(body)

    def _count_unsent(self) -> None:
        if run := current_run():
            metrics.UNSENT_WRITES.labels(run.request.controller).inc()

    def _ref(self, resource: Resource, metadata: Object) -> ObjectRef:
        namespace = str(metadata.get("namespace") or "")
        return ObjectRef(self._cluster, resource.key, namespace, str(metadata["name"]))


def with_preconditions(
    patch: Object | Sequence[Object], uid: str, resource_version: str
) -> Object | Sequence[Object]:
    """The patch with preconditions for uid and resourceVersion; an empty one is none."""
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    required = {field: value for field, value in preconditions.items() if value}
    if not required:
        return patch
    if isinstance(patch, dict):
        return {**patch, "metadata": {**(patch.get("metadata") or {}), **required}}
    changes = [
        {"op": "replace", "path": f"/metadata/{field}", "value": value}
        for field, value in required.items()
    ]
    return [*changes, *patch]


def _is_about_uid(error: Invalid) -> bool:
    causes = cast("list[Object]", error.details.get("causes") or [])
    return any(cause.get("field") == "metadata.uid" for cause in causes)


def _hash(kind: str, ref: ObjectRef, how: str, body: Object | Sequence[Object]) -> bytes:
    digest = blake2b(repr((kind, *ref, how)).encode(), digest_size=_HASH_BYTES)
    digest.update(orjson.dumps(body, option=orjson.OPT_SORT_KEYS))
    return digest.digest()
