"""Keeps the revisions of a MultiClusterResource as ControllerRevisions beside it (rule D18).

A revision is what is applied: templates, variables and customizations, but not where, how fast or
under which policy. It is stored before anything refers to it, and named after its content: what is
read back is used only if it has the hash of its name.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import structlog

from fleetbus.errors import AlreadyExists, Conflict, KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.json_fields import many, mapping, string
from fleetbus.ownership import OWNER_UID_LABEL
from fleetbus.process.redact import cut
from fleetbus_distributor.errors import RolloutError, SpecError
from fleetbus_distributor.hub.document import MANAGER, Document
from fleetbus_distributor.hub.rollout_state import RevisionRef, RolloutState
from fleetbus_distributor.kind import API_VERSION, KIND
from fleetbus_distributor.render.spec import Spec, read_spec
from fleetbus_distributor.render.template import Object
from fleetbus_distributor.rollout.history import (
    CHANGE_CAUSE,
    FIELDS,
    RESOURCE,
    cause_in,
    list_stored,
    number_of,
    unpack,
)

log = structlog.get_logger()

_MAX_NAME: Final = 240
_MAX_CAUSE: Final = 250
_CACHED: Final = 64


def fields_of(resource: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a MultiClusterResource's spec that make its revision."""
    spec = cast("dict[str, Any]", resource["spec"])
    return {name: spec[name] for name in FIELDS if spec.get(name) is not None}


def name_of(document: Document, fields: Mapping[str, Any]) -> str:
    """The name of the ControllerRevision of these fields."""
    content = json.dumps([document.metadata["uid"], fields], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    return f"{str(document.metadata['name'])[:_MAX_NAME]}-{digest}"


class Revisions:
    """The revisions of all MultiClusterResources; content that was read is kept for a while."""

    def __init__(self) -> None:
        self._specs: OrderedDict[tuple[str, str], Spec] = OrderedDict()

    async def ensure(
        self, hub: KubeClient, document: Document, current: RevisionRef | None
    ) -> tuple[RevisionRef, bool]:
        """Store the revision of the spec, as the newest one, if it is not stored already.

        Args:
            hub: where the MultiClusterResource is.
            document: the MultiClusterResource, read live.
            current: the newest revision on record; an equal spec keeps its number.

        Returns:
            The revision, and whether an earlier one with the same content became it again.

        Raises:
            RolloutError: it cannot be stored, for example because it is too large.
            KubeError: the hub did not answer.
        """
        fields = fields_of(document.resource)
        name = name_of(document, fields)
        stored = await list_stored(hub, document.resource)
        revision = next(
            (revision for revision in stored if revision["metadata"]["name"] == name), None
        )
        number = _number_for(name, current, revision, stored)
        if revision is None:
            await self._create(hub, _body(document, name, number, fields))
        is_again = revision is not None and number_of(revision) != number
        if revision is not None and is_again:
            namespace = revision["metadata"]["namespace"]
            change = {"revision": number, "metadata": {"annotations": _cause_of(document)}}
            await hub.patch(RESOURCE, namespace, name, change, field_manager=MANAGER)
        return RevisionRef(number, name), is_again

    async def _create(self, hub: KubeClient, body: Object) -> None:
        try:
            await hub.create(RESOURCE, body, field_manager=MANAGER)
        except AlreadyExists as error:
            name = body["metadata"]["name"]
            raise RolloutError(
                f"the ControllerRevision {name} was not created by this rollout: delete it"
            ) from error
        except KubeError as error:
            if error.status not in _REFUSALS:
                raise
            # Other refusals may quote what is in the template (rule D14).
            why = error.message if error.status == _FORBIDDEN else error.reason
            raise RolloutError(f"the revision cannot be stored: {why}") from error

    async def load(self, hub: KubeClient, document: Document, ref: RevisionRef) -> Spec | None:
        """The spec of a revision; None if it is gone, or is not what its name says."""
        key = (str(document.metadata["uid"]), ref.name)
        if spec := self._specs.get(key):
            self._specs.move_to_end(key)
            return spec
        stored = await hub.get(RESOURCE, document.metadata["namespace"], ref.name)
        fields = unpack(stored) if stored else None
        if fields is None or name_of(document, fields) != ref.name:
            log.warning("revision_missing", revision=ref.name)
            return None
        try:
            spec = read_spec({"spec": fields})
        except SpecError:
            # Written by a version that knew more fields.
            log.warning("revision_unreadable", revision=ref.name)
            return None
        self._specs[key] = spec
        while len(self._specs) > _CACHED:
            self._specs.popitem(last=False)
        return spec

    async def trim(
        self, hub: KubeClient, document: Document, limit: int, state: RolloutState
    ) -> None:
        """Delete the oldest revisions beyond the limit, but none that a cluster has.

        Another round may have rolled one of them out again since this one has read the status:
        then it has a number that is newer than any here, and perhaps only after it was listed.
        """
        used = {state.revision.name, *(revision.name for revision in state.behind.values())}
        stored = sorted(await list_stored(hub, document.resource), key=number_of)
        spare = [
            revision
            for revision in stored
            if number_of(revision) < state.revision.number
            and revision["metadata"]["name"] not in used
        ]
        for revision in spare[: max(0, len(spare) - limit)]:
            metadata = revision["metadata"]
            place = (str(metadata["namespace"]), str(metadata["name"]))
            version = str(metadata["resourceVersion"])
            with suppress(Conflict):
                await hub.delete(
                    RESOURCE, *place, uid=str(metadata["uid"]), resource_version=version
                )


_FORBIDDEN: Final = 403
_REFUSALS: Final = (400, _FORBIDDEN, 413, 422)


def _number_for(
    name: str,
    current: RevisionRef | None,
    stored_revision: Mapping[str, Any] | None,
    stored: Sequence[Mapping[str, Any]],
) -> int:
    """The number of a revision: that on record, or, for one that is rolled out again, a new one."""
    if current is not None and current.name == name:
        return current.number
    highest = max((number_of(revision) for revision in stored), default=0)
    recorded = current.number if current else 0
    if stored_revision is not None and number_of(stored_revision) == highest > recorded:
        return highest  # stored just before a crash
    return max(highest, recorded) + 1


def _body(document: Document, name: str, number: int, fields: Mapping[str, Any]) -> Object:
    metadata = document.metadata
    packed = zlib.compress(json.dumps(fields, sort_keys=True).encode())
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": {OWNER_UID_LABEL: metadata["uid"]},
            "annotations": _cause_of(document),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "data": {"encoding": "zlib+base64", "spec": base64.b64encode(packed).decode()},
        "revision": number,
    }


def _cause_of(document: Document) -> dict[str, str]:
    """The annotation with the cause: that of the author, or the manager of the last edit."""
    metadata = document.metadata
    cause = cause_in(metadata)
    if not cause:
        edits = [edit for edit in many(metadata, "managedFields") if not edit.get("subresource")]
        edits = [edit for edit in edits if "f:spec" in mapping(edit, "fieldsV1")]
        last = max(edits, key=lambda edit: string(edit, "time"), default=Object())
        manager = string(last, "manager")
        cause = f"edited by {manager}" if manager else ""
    return {CHANGE_CAUSE: cut(cause, _MAX_CAUSE)} if cause else {}
