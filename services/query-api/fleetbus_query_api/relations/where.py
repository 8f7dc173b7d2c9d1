"""Answers where objects of a name are: in all resources of all clusters."""

from __future__ import annotations

from typing import Any

import msgspec

from fleetbus.snapshot import SnapshotReader
from fleetbus.snapshot.reads.lookups import FoundObject
from fleetbus_query_api.objects.listing import describe_resource
from fleetbus_query_api.relations.readable_types import ReadableTypes, TypeReader
from fleetbus_query_api.requests.parameters import WhereParameters
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.render import render_freshness


class Where:
    """Answers requests for a name, as JSON.

    Args:
        reader: the snapshot.
        types: finds what a user may read.
    """

    def __init__(self, *, reader: SnapshotReader, types: TypeReader) -> None:
        self._reader = reader
        self._types = types

    async def find(self, user: User, parameters: WhereParameters) -> bytes:
        """Find the objects of a name that the user may list.

        Raises: as `TypeReader.find`.
        """
        namespace = "" if parameters.namespace == "-" else parameters.namespace
        readable = await self._types.find(
            user, namespace, kind=parameters.kind, clusters=parameters.cluster
        )
        # Freshness first: what is read after it is at least as fresh as it says (rule A4).
        freshness = await self._types.freshness(user, readable, named=parameters.cluster)
        objects = await self._reader.lookups.find_name(
            readable.places, parameters.name, namespace if parameters.namespace else None
        )
        return msgspec.json.encode(
            {
                "items": [render_found(obj, readable) for obj in objects[: parameters.limit]],
                "remaining": max(len(objects) - parameters.limit, 0),
                **render_freshness(freshness),
            }
        )


def render_found(obj: FoundObject, readable: ReadableTypes) -> dict[str, Any]:
    """Where an object is."""
    return {
        "cluster": obj.cluster,
        "resource": describe_resource(readable.known(obj.resource)),
        "namespace": obj.namespace,
        "name": obj.name,
        "uid": obj.uid,
        "resourceVersion": obj.resource_version,
    }
