"""From the owner mark of an object to its owner, and to the request that it wakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from fleetbus.controller.controller import Controller, Watch
from fleetbus.controller.filters import read_metadata
from fleetbus.errors import MalformedOwner
from fleetbus.kube.listing import DECODE_ERRORS
from fleetbus.ownership import OWNER_ANNOTATION, SEED_OWNER_ANNOTATION, Owner, parse_owner
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.reader import Entry
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import check_cluster

log = structlog.get_logger()

_MARKS: Final = (OWNER_ANNOTATION, SEED_OWNER_ANNOTATION)


def check_place(cluster: str, namespace: str) -> None:
    """Check that a request can be an item of the queue, which is taken apart at two slashes.

    Raises:
        InvalidName: it cannot.
    """
    check_cluster(cluster)
    if "/" in namespace:
        raise InvalidName(f"{namespace!r} is not a namespace")


def read_owner(
    body: bytes,
    place: Event | Entry,
    controller: str,
    *,
    marks: Sequence[str] = (OWNER_ANNOTATION,),
) -> Owner | None:
    """The owner that an object's mark names; None if it has none, or none that can be read.

    Args:
        body: of the object.
        place: where it is, for the log.
        controller: the name of who asks, for the log.
        marks: the annotations that may be it, the first one first.
    """
    if not any(mark.encode() in body for mark in marks):
        return None
    try:
        annotations = read_metadata(body).annotations
        text = next(filter(None, map(annotations.get, marks)), None)
        if text is None:
            return None
        owner = parse_owner(text)
        check_place(owner.cluster_name, owner.namespace)
    except (MalformedOwner, InvalidName, *DECODE_ERRORS) as e:
        # Anyone may write an annotation; what cannot be read wakes nobody.
        log.warning(
            "owner_unreadable",
            controller=controller,
            cluster=place.cluster,
            namespace=place.namespace,
            name=place.name,
            error=str(e),
        )
        return None
    return owner


def owner_request(controller: Controller, watch: Watch, event: Event) -> Request | None:
    """Whom the owner mark of an object wakes; None if it has none, or none for this watch."""
    owner = read_owner(event.object or b"", event, controller.name, marks=_MARKS)
    if owner is None or (watch.owner_kind and owner.kind != watch.owner_kind):
        return None
    cluster = event.cluster if watch.per_cluster else owner.cluster_name
    return controller.request(cluster, owner.namespace, owner.name)
