"""Writes to the MultiClusterResource on the hub: status, finalizer, Kubernetes Events.

Each write carries the resourceVersion that the round has read: two distributors, one of which has
lost its lease without noticing, cannot overwrite each other (rule R4).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

import structlog

from fleetbus.errors import Conflict, Forbidden, KubeError
from fleetbus.finalizers import has_finalizer, with_finalizer, without_finalizer
from fleetbus.fleet.inventory_chunks import ChunkUnusable, Part, check_format, is_chunked, refs_of
from fleetbus.kube.client import KubeClient
from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION, FINALIZER, MULTI_CLUSTER_RESOURCES
from fleetbus.process.redact import cut
from fleetbus_distributor.errors import ChunkError
from fleetbus_distributor.hub.chunks import (
    STORED_WITHIN,
    ChunkStore,
    read_unused,
    release,
    to_listed,
)
from fleetbus_distributor.hub.status import Status, is_changed
from fleetbus_distributor.kind import API_VERSION, KIND
from fleetbus_distributor.render.template import Object

log = structlog.get_logger()

MANAGER: Final = "fleetbus-distributor"
_EVENT_MESSAGE_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class KubeEvent:
    """A Kubernetes Event to write."""

    reason: str
    message: str
    is_warning: bool = False


_RESTORE: Final = (
    "nothing is applied or deleted; restore the InventoryChunk, or remove status.intent: then what "
    "the templates name is taken over again, and the rest is reported as orphaned"
)


class Document:
    """One MultiClusterResource on the hub, as read at the start of a round.

    Args:
        client: the hub's.
        resource: the object; every write keeps it current.
        chunks: the parts of intents that are too large for a status.
    """

    def __init__(
        self, client: KubeClient, resource: Object, chunks: ChunkStore | None = None
    ) -> None:
        self._client = client
        self.resource = resource
        self.read_version = str(resource["metadata"].get("resourceVersion", ""))
        """Its resourceVersion when it was read; writes do not change it."""
        self._chunks = chunks or ChunkStore()
        self._intent: Status = {}
        """Takes the place of the list of chunks in the stored status, once they are loaded."""

    def check_format(self) -> None:
        """Make sure that this release knows the format of the status.

        Raises:
            NewerStatus: it does not; the object may not be written.
        """
        check_format(self._stored)

    async def load_chunks(self, *, from_cache: bool = False) -> None:
        """Load the intent if it is in chunks; without that it cannot be read.

        Args:
            from_cache: chunks that this process knows need not exist any more.

        Raises:
            ChunkError: a chunk is missing or damaged.
            KubeError: the hub cannot be read.
        """
        if not is_chunked(self._stored):
            return
        try:
            parts = await self._chunks.read(self._client, self.resource, from_cache=from_cache)
        except ChunkUnusable as error:
            raise ChunkError(f"{error}; {_RESTORE}") from error
        mark = self._stored["intent"].get("mark")
        self._intent = {"parts": parts, "mark": mark} if mark else {"parts": parts}

    @property
    def metadata(self) -> Object:
        """Its metadata."""
        return cast("Object", self.resource["metadata"])

    @property
    def status(self) -> Status:
        """The status as it is stored, with the intent from its chunks."""
        stored = self._stored
        return {**stored, "intent": self._intent} if self._intent else stored

    @property
    def _stored(self) -> Status:
        return cast("Status", self.resource.get("status") or {})

    @property
    def generation(self) -> int:
        """The generation of its spec."""
        return int(self.metadata.get("generation", 0))

    @property
    def is_observed(self) -> bool:
        """Whether a round for all clusters has reconciled this generation."""
        return self.status.get("observedGeneration") == self.generation

    @property
    def is_deleted(self) -> bool:
        """Whether it is being deleted."""
        return bool(self.metadata.get("deletionTimestamp"))

    @property
    def has_finalizer(self) -> bool:
        """Whether it waits for our clean-up."""
        return has_finalizer(self.resource, FINALIZER)

    @property
    def confirmed(self) -> str:
        """The plan hash that a person confirmed."""
        annotations = cast("dict[str, str]", self.metadata.get("annotations") or {})
        return annotations.get(CONFIRM_PRUNE_ANNOTATION, "")

    async def write_status(self, status: Status) -> None:
        """Store a status if it has changed.

        Raises:
            Conflict: the object was changed since it was read; the round starts again.
        """
        if not is_changed(status, self.status):
            return
        before = {ref.name for ref in refs_of(self._stored)}
        intent = cast("Status", status.get("intent") or {})
        stored = await self._store_parts(status) if "parts" in intent else status
        unused = await read_unused(
            self._client,
            self.metadata["namespace"],
            sorted(before - {ref.name for ref in refs_of(stored)}),
        )
        body = {**self.resource, "status": stored}
        self.resource = await self._client.update_status(
            MULTI_CLUSTER_RESOURCES, body, field_manager=MANAGER
        )
        self._intent = intent if "parts" in intent else {}
        await release(self._client, unused)

    async def _store_parts(self, status: Status) -> Status:
        """Store the parts of the intent, and list them in the status instead."""
        intent = status["intent"]
        if self._intent and intent["parts"] == self._intent["parts"]:
            listed = self._stored["intent"]["chunks"]
        else:
            listed = await self._create_chunks(intent["parts"])
        mark = {"mark": intent["mark"]} if intent.get("mark") else {}
        return {**status, "intent": {"chunks": listed, **mark}}

    async def _create_chunks(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        try:
            refs, began = await self._chunks.write(
                self._client, self.resource, parts, refs_of(self._stored)
            )
        except Forbidden:
            if not self.is_deleted or not is_chunked(self._stored):
                raise
            # Its namespace is terminating. The stored record has all that is still there, and more.
            return cast("list[dict[str, Any]]", self._stored["intent"]["chunks"])
        if time.monotonic() - began > STORED_WITHIN.total_seconds():
            raise Conflict(409, "Conflict", "the chunks of the intent were stored too long ago")
        return to_listed(refs)

    async def drop_intent(self) -> None:
        """Empty a record in chunks, which go with it: nothing is left to clean up."""
        if is_chunked(self._stored):
            await self.write_status({**self.status, "intent": {"objects": [], "clusters": []}})

    async def add_finalizer(self) -> None:
        """Add our finalizer, before the first apply: else nobody might clean up."""
        await self._patch_metadata({"finalizers": with_finalizer(self.resource, FINALIZER)})

    async def remove_finalizer(self) -> None:
        """Remove our finalizer; those of others stay (rule T15)."""
        await self._patch_metadata({"finalizers": without_finalizer(self.resource, FINALIZER)})

    async def drop_confirmation(self) -> None:
        """Remove the confirmation, which counts once: what it allows is on record."""
        await self._patch_metadata({"annotations": {CONFIRM_PRUNE_ANNOTATION: None}})

    async def _patch_metadata(self, change: Mapping[str, Any]) -> None:
        metadata = {"resourceVersion": self.metadata["resourceVersion"], **change}
        self.resource = await self._client.patch(
            MULTI_CLUSTER_RESOURCES,
            self.metadata["namespace"],
            self.metadata["name"],
            {"metadata": metadata},
            field_manager=MANAGER,
        )

    async def emit_events(self, events: Sequence[KubeEvent]) -> None:
        """Write Kubernetes Events; they are for people, so a failure is only logged."""
        for event in events:
            try:
                await self._client.create("v1/events", self._body(event), field_manager=MANAGER)
            except KubeError as error:
                log.warning("event_not_written", reason=event.reason, error=str(error))
                return

    def _body(self, event: KubeEvent) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name, namespace = self.metadata["name"], self.metadata["namespace"]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name[:200]}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": namespace,
                "name": name,
                "uid": self.metadata["uid"],
                "resourceVersion": self.metadata["resourceVersion"],
            },
            "reason": event.reason,
            "message": cut(event.message, _EVENT_MESSAGE_LIMIT),
            "type": "Warning" if event.is_warning else "Normal",
            "source": {"component": MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
