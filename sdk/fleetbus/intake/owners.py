"""Reads the owner mark of an object, and the request that it wakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.controller.filters import read_metadata
from fleetbus.controller.watch import Watch
from fleetbus.errors import MalformedOwner
from fleetbus.kube.list_watch.listing import DECODE_ERRORS
from fleetbus.ownership import ADMIRALTY_OWNER_ANNOTATION, OWNER_ANNOTATION, Owner, parse_owner
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.entries import Entry
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import check_cluster

log = structlog.get_logger()

_MARKS: Final = (OWNER_ANNOTATION, ADMIRALTY_OWNER_ANNOTATION)


def check_place(cluster: str, namespace: str) -> None:
    """Check that a request can be an item of the queue, whose name is split at two slashes.

    Raises:
        InvalidName: the cluster or the namespace would break that.
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
    """The owner that an object's mark names; None if there is no mark, or it is malformed.

    Args:
        body: the object's JSON.
        place: the object, for the log.
        controller: the name of the caller, for the log.
        marks: the annotations that may carry it, in this order.
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
        # Anyone may write an annotation; a malformed one wakes nobody.
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
    """The request that an owner mark wakes; None if there is no mark, or not for this watch."""
    owner = read_owner(event.object or b"", event, controller.name, marks=_MARKS)
    if owner is None or (watch.owner_kind and owner.kind != watch.owner_kind):
        return None
    cluster = event.cluster if watch.per_cluster else owner.cluster_name
    return controller.request(cluster, owner.namespace, owner.name)
