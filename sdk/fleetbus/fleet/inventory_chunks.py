"""Reads an intent that is too large for one status, from its chunks (rule D2); checks the format.

A chunk is an object of its own with a part of the intent, named by its content and never changed.
The status lists the chunks with their hashes, so what is read is either what was recorded or is
refused: from an intent of which a part is missing or damaged nothing may be concluded.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import orjson

from fleetbus.errors import FleetbusError
from fleetbus.kube.client import KubeClient
from fleetbus.process.stored_format import why_newer

CHUNKS: Final = "fleetbus.dev/v1alpha1/inventorychunks"
_AT_ONCE: Final = 8

Part: TypeAlias = dict[str, Any]
"""The intent of some clusters: its objects, and its clusters."""


class ChunkUnusable(FleetbusError):
    """A chunk is missing, damaged or malformed; the message names it."""


class NewerStatus(ChunkUnusable):
    """A newer release has written the status, and the chunks, in a format of its own."""


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk as the status lists it."""

    name: str
    sha256: str
    clusters: int
    objects: int
    """On all of its clusters together."""


def check_format(status: Mapping[str, Any]) -> None:
    """Make sure that this release knows the format of a stored status.

    Raises:
        NewerStatus: it does not; nothing may be concluded from it, and nothing of it written.
    """
    back = (
        "to go on with this one, remove the status: then what the templates name is taken over"
        " again, and the rest is reported as orphaned"
    )
    if newer := why_newer("the status", str(status.get("format") or ""), back=back):
        raise NewerStatus(newer)


def is_chunked(status: Mapping[str, Any]) -> bool:
    """Whether the intent of a stored status is in chunks."""
    intent: Any = status.get("intent")
    return isinstance(intent, dict) and "chunks" in intent


def refs_of(status: Mapping[str, Any]) -> list[ChunkRef]:
    """The chunks that a stored status lists; none if its intent is in the status itself.

    Raises:
        ChunkUnusable: the list is malformed, or a newer release has written the status.
    """
    check_format(status)
    if not is_chunked(status):
        return []
    try:
        listed = cast("list[dict[str, Any]]", status["intent"]["chunks"])
        return [
            ChunkRef(
                str(entry["name"]),
                str(entry["sha256"]),
                int(entry["clusters"]),
                int(entry["objects"]),
            )
            for entry in listed
        ]
    except (KeyError, TypeError, ValueError) as e:
        raise ChunkUnusable("status.intent.chunks is malformed") from e


def hash_of(data: str) -> str:
    """The hash that the status has of a chunk's data."""
    return hashlib.sha256(data.encode()).hexdigest()


async def read_parts(
    hub: KubeClient,
    namespace: str,
    status: Mapping[str, Any],
    *,
    cached: Callable[[ChunkRef], Part | None] | None = None,
) -> list[Part]:
    """Read the parts of a chunked intent, in the order of the status.

    Args:
        hub: where the MultiClusterResource is.
        namespace: of the MultiClusterResource.
        status: as it is stored.
        cached: returns the part of a chunk that need not be read, or None.

    Raises:
        ChunkUnusable: one of them is missing or is not what was recorded.
        KubeError: the hub cannot be read; nothing is known.
    """
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def read(ref: ChunkRef) -> Part:
        if cached and (part := cached(ref)) is not None:
            return part
        async with at_once:
            chunk = await hub.get(CHUNKS, namespace, ref.name)
        return await asyncio.to_thread(_part_of, ref, chunk)

    return list(await asyncio.gather(*(read(ref) for ref in refs_of(status))))


def _part_of(ref: ChunkRef, chunk: Mapping[str, Any] | None) -> Part:
    if chunk is None:
        raise ChunkUnusable(f"InventoryChunk {ref.name} of the intent is missing")
    data = chunk.get("data")
    if not isinstance(data, str) or hash_of(data) != ref.sha256:
        raise ChunkUnusable(f"InventoryChunk {ref.name} of the intent is not what was recorded")
    try:
        part: object = orjson.loads(data)
    except ValueError as e:
        raise ChunkUnusable(f"InventoryChunk {ref.name} of the intent is malformed") from e
    if not isinstance(part, dict):
        raise ChunkUnusable(f"InventoryChunk {ref.name} of the intent is malformed")
    return cast("Part", part)
