"""From the owner mark of an object to the request that it wakes."""

from __future__ import annotations

from typing import Final

import structlog

from fleetbus.controller import Controller, Watch
from fleetbus.errors import MalformedOwner
from fleetbus.intake.filters import read_marked
from fleetbus.kube.listing import UNREADABLE
from fleetbus.ownership import OWNER_ANNOTATION, SEED_OWNER_ANNOTATION, parse_owner
from fleetbus.reconcile import Request
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import check_cluster

log = structlog.get_logger()

_MARKS: Final = (OWNER_ANNOTATION.encode(), SEED_OWNER_ANNOTATION.encode())


def check_place(cluster: str, namespace: str) -> None:
    """Check that a request can be an item of the queue, which is taken apart at two slashes.

    Raises:
        InvalidName: it cannot.
    """
    check_cluster(cluster)
    if "/" in namespace:
        raise InvalidName(f"{namespace!r} is not a namespace")


def owner_request(controller: Controller, watch: Watch, event: Event) -> Request | None:
    """Whom the owner mark of an object wakes; None if it has none, or none for this watch."""
    body = event.object
    if body is None or not any(mark in body for mark in _MARKS):
        return None
    try:
        annotations = read_marked(body).annotations
        text = annotations.get(OWNER_ANNOTATION) or annotations.get(SEED_OWNER_ANNOTATION)
        if not text:
            return None
        owner = parse_owner(text)
        check_place(owner.cluster_name, owner.namespace)
    except (MalformedOwner, InvalidName, *UNREADABLE) as e:
        # Anyone may write an annotation; what cannot be read wakes nobody.
        log.warning(
            "owner_unreadable",
            controller=controller.name,
            cluster=event.cluster,
            namespace=event.namespace,
            name=event.name,
            error=str(e),
        )
        return None
    if watch.owner_kind and owner.kind != watch.owner_kind:
        return None
    return controller.request(owner.cluster_name, owner.namespace, owner.name)
