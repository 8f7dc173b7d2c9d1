"""Reads the revisions of a MultiClusterResource (rule D18).

Apart from `revisions`, which stores them, so that `fleetbus rollout` need not load the models of a
spec.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from fleetbus.errors import Forbidden
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.json_fields import string
from fleetbus.ownership import OWNER_UID_LABEL
from fleetbus_distributor.errors import RolloutError
from fleetbus_distributor.hub.rollout_state import RevisionRef

RESOURCE: Final = "apps/v1/controllerrevisions"
FIELDS: Final = ("template", "templates", "vars", "customize", "serviceAccountName")
"""The fields of the spec that a revision has."""
_MAX_BYTES: Final = 4 * 1024 * 1024
"""Size of the JSON of a revision that is read back; etcd bounds what was written."""
CHANGE_CAUSE: Final = "kubernetes.io/change-cause"
"""As `kubectl rollout history` shows it."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A stored revision."""

    ref: RevisionRef
    created: str
    fields: Mapping[str, Any]
    """The part of the spec."""
    cause: str = ""
    """Why it was made, as its author said, or by which manager; "" of one by an older version."""


async def read_history(hub: KubeClient, resource: Object) -> list[Revision]:
    """The stored revisions, oldest first; those that cannot be read are left out.

    Raises: as `list_stored`.
    """
    revisions: list[Revision] = []
    for stored in await list_stored(hub, resource):
        fields = unpack(stored)
        if fields is not None:
            ref = RevisionRef(number_of(stored), str(stored["metadata"]["name"]))
            created = str(stored["metadata"].get("creationTimestamp", ""))
            revisions.append(Revision(ref, created, fields, cause_in(stored["metadata"])))
    return sorted(revisions, key=lambda revision: revision.ref)


async def list_stored(hub: KubeClient, resource: Object) -> list[Object]:
    """The ControllerRevisions of a MultiClusterResource.

    Raises:
        RolloutError: the hub refuses to list them.
        KubeError: the hub did not answer.
    """
    metadata = resource["metadata"]
    selector = f"{OWNER_UID_LABEL}={metadata['uid']}"
    try:
        return await hub.list(RESOURCE, metadata["namespace"], label_selector=selector)
    except Forbidden as error:
        raise RolloutError(f"the revisions cannot be read: {error.message}") from error


def number_of(revision: Mapping[str, Any]) -> int:
    """Its number; a later revision has a higher one."""
    return int(revision.get("revision") or 0)


def cause_in(metadata: Mapping[str, Any]) -> str:
    """The annotation with the cause; "" without one."""
    return string(metadata, "annotations", CHANGE_CAUSE)


def unpack(revision: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields in a ControllerRevision; None if it is not one of ours."""
    data: Any = revision.get("data")
    try:
        packed = base64.b64decode(str(data["spec"]), validate=True)
        # Bounded: somebody else may have written it.
        content = zlib.decompressobj().decompress(packed, _MAX_BYTES)
        fields: Any = json.loads(content)
    except (KeyError, TypeError, ValueError, zlib.error, RecursionError):
        return None
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else None
