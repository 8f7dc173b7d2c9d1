"""Stores the parts of a large intent in chunks of their own (rule D2).

The order of the writes makes each crash harmless: new chunks first, then the status that lists
them, then the old chunks go. So whatever status is stored, its chunks exist; what is left over is
listed by no status, and the sweep removes it.

A chunk has our finalizer: a MultiClusterResource that is deleted in the foreground, or with its
namespace, would lose its record before its objects are cleaned up. Only `release` lets it go.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import orjson
import structlog

from fleetbus.errors import AlreadyExists, Conflict, KubeError, NotFound
from fleetbus.finalizers import without_finalizer
from fleetbus.fleet.inventory_chunks import (
    CHUNKS,
    ChunkRef,
    ChunkUnusable,
    Part,
    hash_of,
    read_parts,
    refs_of,
)
from fleetbus.kube.client import KubeClient
from fleetbus.ownership import FINALIZER, OWNER_UID_LABEL
from fleetbus_distributor.kind import API_VERSION, KIND
from fleetbus_distributor.render.template import Object

log = structlog.get_logger()

MANAGER: Final = "fleetbus-distributor"
_USED_AT: Final = "fleetbus.dev/used-at"
"""When a round began to use a chunk that was there already, so that the sweep leaves it."""
UNUSED_FOR: Final = timedelta(minutes=10)
"""Age of a chunk that the sweep removes; no round takes so long to write the status that lists
it."""
STORED_WITHIN: Final = timedelta(minutes=5)
"""A status that lists new chunks is written so long after they were, or not at all."""
_AT_ONCE: Final = 8
_CACHED: Final = 512
"""Parts of 256 KiB that a process keeps."""
_TRIES: Final = 3


class ChunkStore:
    """The chunks on one hub, with those that this process has read or written lately."""

    def __init__(self) -> None:
        self._parts: OrderedDict[tuple[str, str], Part] = OrderedDict()

    async def read(
        self, hub: KubeClient, resource: Object, *, from_cache: bool = False
    ) -> list[Part]:
        """Read the parts of a MultiClusterResource's intent.

        Args:
            hub: where they are.
            resource: the MultiClusterResource, as it is stored.
            from_cache: content that this process knows need not be read again.

        Raises:
            ChunkUnusable: a chunk is missing or is not what was recorded.
            KubeError: the hub cannot be read.
        """
        status = cast("Mapping[str, Any]", resource.get("status") or {})
        namespace = str(resource["metadata"]["namespace"])
        cache = self._known if from_cache else None
        parts = await read_parts(hub, namespace, status, cached=cache)
        for ref, part in zip(refs_of(status), parts, strict=True):
            self._keep(ref, part)
        return parts

    async def write(
        self, hub: KubeClient, resource: Object, parts: Sequence[Part], listed: Sequence[ChunkRef]
    ) -> tuple[list[ChunkRef], float]:
        """Create the chunks that do not exist yet.

        Args:
            hub: where they are to be.
            resource: the MultiClusterResource.
            parts: of its intent.
            listed: the chunks that its stored status lists.

        Returns:
            The chunks, and the time in `time.monotonic()` before which the first was written.

        Raises:
            KubeError: the hub refused or did not answer; nothing lists the chunks so far.
        """
        began = time.monotonic()
        by_hash = {ref.sha256: ref for ref in listed}
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def store(part: Part) -> ChunkRef:
            data = await asyncio.to_thread(_to_json, part)
            digest = hash_of(data)
            if digest in by_hash:
                return by_hash[digest]
            async with at_once:
                name = await _create(hub, resource, data, digest)
            ref = ChunkRef(name, digest, len(part["clusters"]), count(part))
            self._keep(ref, part)
            return ref

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(store(part), name="store chunk") for part in parts]
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return [task.result() for task in tasks], began

    def _known(self, ref: ChunkRef) -> Part | None:
        return self._parts.get((ref.name, ref.sha256))

    def _keep(self, ref: ChunkRef, part: Part) -> None:
        self._parts[ref.name, ref.sha256] = part
        self._parts.move_to_end((ref.name, ref.sha256))
        while len(self._parts) > _CACHED:
            self._parts.popitem(last=False)


def count(part: Part) -> int:
    """The objects of a part on all of its clusters."""
    every = len(part["objects"])
    return sum(len(entry["objects"]) if "objects" in entry else every for entry in part["clusters"])


def to_listed(refs: Iterable[ChunkRef]) -> list[dict[str, Any]]:
    """The form in which a status lists chunks."""
    return [
        {"name": ref.name, "sha256": ref.sha256, "clusters": ref.clusters, "objects": ref.objects}
        for ref in refs
    ]


async def _create(hub: KubeClient, resource: Object, data: str, digest: str) -> str:
    """Create a chunk, or use the one of the same content; a chunk that is going is left alone.

    The UID of the owner is in the name: what an earlier one of the same name left is collected.
    """
    for attempt in range(_TRIES):
        salt = time.time_ns() if attempt else ""
        salted = hash_of(f"{resource['metadata']['uid']}/{digest}/{salt}")
        body = _body(resource, data, salted)
        name = str(body["metadata"]["name"])
        try:
            await hub.create(CHUNKS, body, field_manager=MANAGER)
        except AlreadyExists:
            if await _take_over(hub, resource, name, data):
                return name
        else:
            return name
    raise Conflict(409, "Conflict", "no chunk of the intent could be created under a free name")


async def _take_over(hub: KubeClient, resource: Object, name: str, data: str) -> bool:
    """Use a chunk that exists; marking it as used makes a sweep that is about to remove it fail."""
    namespace = str(resource["metadata"]["namespace"])
    chunk = await hub.get(CHUNKS, namespace, name)
    if chunk is None or chunk.get("data") != data or chunk["metadata"].get("deletionTimestamp"):
        return False
    metadata = {
        "uid": chunk["metadata"]["uid"],
        "resourceVersion": chunk["metadata"]["resourceVersion"],
        "annotations": {_USED_AT: datetime.now(UTC).isoformat()},
    }
    patch = {"metadata": metadata}
    with suppress(Conflict, NotFound):
        used = await hub.patch(CHUNKS, namespace, name, patch, field_manager=MANAGER)
        return not used["metadata"].get("deletionTimestamp")
    return False


def _to_json(part: Part) -> str:
    return orjson.dumps(part, option=orjson.OPT_SORT_KEYS).decode()


def _body(resource: Object, data: str, digest: str) -> Object:
    metadata = resource["metadata"]
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "InventoryChunk",
        "metadata": {
            "name": f"{str(metadata['name'])[:200].rstrip('.-')}-{digest[:16]}",
            "namespace": metadata["namespace"],
            "labels": {OWNER_UID_LABEL: metadata["uid"]},
            "ownerReferences": [owner],
            "finalizers": [FINALIZER],
        },
        "data": data,
    }


# --- chunks that are not needed any more ------------------------------------------------------


async def read_unused(hub: KubeClient, namespace: str, names: Sequence[str]) -> list[Object]:
    """Read the metadata of chunks that a status is about to list no longer.

    They are read before that status is written: whoever reads it and lists one of them again marks
    the chunk as used first, so that `release` fails. One that cannot be read is left to the sweep.
    """
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def read(name: str) -> Object | None:
        with suppress(KubeError):
            async with at_once:
                chunk = await hub.get(CHUNKS, namespace, name)
            return {"metadata": chunk["metadata"]} if chunk else None
        return None

    found = await asyncio.gather(*(read(name) for name in names))
    return [chunk for chunk in found if chunk is not None]


async def release(hub: KubeClient, chunks: Iterable[Object]) -> None:
    """Delete chunks that no status lists any more; one that stays is found by the sweep.

    Args:
        hub: where they are.
        chunks: as `read_unused` has read them.
    """
    for chunk in chunks:
        try:
            await _remove(hub, chunk)
        except KubeError as error:
            name = chunk["metadata"]["name"]
            log.info("chunk_not_removed", chunk=name, error=str(error))


async def sweep(hub: KubeClient, resources: Sequence[Object], *, now: datetime) -> int:
    """Delete the chunks that no status lists and that no round is about to list.

    Args:
        hub: where they are.
        resources: all MultiClusterResources, read after `now`.
        now: before they were read.

    Returns:
        How many were removed.

    Raises:
        KubeError: the hub cannot be read.
    """
    listed: set[tuple[str, str]] = set()
    in_doubt: set[str] = set()
    for resource in resources:
        metadata = resource["metadata"]
        try:
            refs = refs_of(cast("Mapping[str, Any]", resource.get("status") or {}))
        except ChunkUnusable:
            in_doubt.add(str(metadata["uid"]))
        else:
            listed |= {(str(metadata["namespace"]), ref.name) for ref in refs}
    removed = 0
    for chunk in await hub.list(CHUNKS):
        metadata = chunk["metadata"]
        is_listed = (metadata["namespace"], metadata["name"]) in listed
        labels = cast("Mapping[str, str]", metadata.get("labels") or {})
        owner = labels.get(OWNER_UID_LABEL)
        if is_listed or owner in in_doubt or _last_used(metadata) > now - UNUSED_FOR:
            continue
        with suppress(Conflict, NotFound):
            await _remove(hub, chunk)
            removed += 1
    return removed


async def _remove(hub: KubeClient, chunk: Object) -> None:
    """Delete a chunk as it was read, then let it go."""
    metadata = chunk["metadata"]
    namespace, name = str(metadata["namespace"]), str(metadata["name"])
    if not metadata.get("deletionTimestamp"):
        version = str(metadata["resourceVersion"])
        uid = str(metadata["uid"])
        await hub.delete(CHUNKS, namespace, name, uid=uid, resource_version=version)
    finalizers = without_finalizer(chunk, FINALIZER)
    patch: Object = {"metadata": {"uid": metadata["uid"], "finalizers": finalizers}}
    with suppress(NotFound):
        await hub.patch(CHUNKS, namespace, name, patch, field_manager=MANAGER)


def _last_used(metadata: Mapping[str, Any]) -> datetime:
    annotations = cast("Mapping[str, str]", metadata.get("annotations") or {})
    times = [str(metadata["creationTimestamp"]), annotations.get(_USED_AT, "")]
    return max(_read_time(time) for time in times)


def _read_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
