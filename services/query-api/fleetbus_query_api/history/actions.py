"""Finds what controllers and the distributor did about an object, as far as a user may know it.

The mark that names an owner is an annotation, which anybody may write who may write the object: so
whatever is about the owner takes the right to get the owner (rule A1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fleetbus.bus.connection import NoStream
from fleetbus.bus.stream_reads import read_messages
from fleetbus.ownership import Owner
from fleetbus.process.clock import rfc3339
from fleetbus.run.current import ObjectRef
from fleetbus_proto.distribution import DistributionEvent, decode_distribution_event
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, distribution_filter
from fleetbus_query_api.access.authorise import Access, Right, authorise_where_decided
from fleetbus_query_api.catalog.catalog import Catalog
from fleetbus_query_api.history.runs import ControllerRun, RunReads
from fleetbus_query_api.past.window import Asked
from fleetbus_query_api.relations.owners import right_to_get
from fleetbus_query_api.requests.user import User

_MOST_REPORTS: Final = 100
_GROUP: Final = "fleetbus.dev"
_PLURAL: Final = "multiclusterresources"
_DISTRIBUTED: Final = f"{_GROUP}/{_PLURAL}"
_KIND: Final = "MultiClusterResource"
_ON_HUB: Final = "distributor"
_ON_TARGETS: Final = "distributor-targets"
"""Its requests name a target cluster, and a MultiClusterResource of the hub: never one there."""


@dataclass(frozen=True, slots=True)
class _Place:
    """An object that requests may name.

    Attributes:
        resource: such as `apps/deployments`.
        is_target: whether it stands for a MultiClusterResource of the hub in a target cluster.
    """

    cluster: str
    namespace: str
    name: str
    resource: str
    is_target: bool = False

    def fits(self, controller_run: ControllerRun) -> bool:
        """Whether a run is for this object, and not for another kind of the same name.

        Of a request that a mapping function made it is unknown what it names.
        """
        request = controller_run.request
        return (request.cluster, request.namespace, request.name) == (
            self.cluster,
            self.namespace,
            self.name,
        ) and self._is_of(controller_run)

    def _is_of(self, controller_run: ControllerRun) -> bool:
        if controller_run.request.controller == _ON_TARGETS:
            return self.is_target
        if controller_run.request.controller == _ON_HUB:
            return self.resource == _DISTRIBUTED
        return self.resource in controller_run.run.resources


class Actions:
    """Finds what was done about an object.

    Args:
        access: decides what a user may get.
        catalog: resolves kinds.
        runs: the last runs of controllers.
    """

    def __init__(self, *, access: Access, catalog: Catalog, runs: RunReads) -> None:
        self._access = access
        self._catalog = catalog
        self._runs = runs

    async def find(
        self, user: User, past: Asked, ref: ObjectRef, owner: Owner | None
    ) -> list[dict[str, Any]]:
        """Describe the last runs of controllers, and the reports of the distributor.

        Args:
            user: may get the object.
            past: since when reports are wanted.
            ref: the object.
            owner: the owner that the object names, which may not be its owner.

        Raises:
            StoreEmpty: the fleet is unknown (rule P13).
            UnavailableProblem: the hub does not decide.
            BusError: the stream cannot be read.
            redis.exceptions.RedisError: the store is away.
        """
        places = [_Place(ref.cluster, ref.namespace, ref.name, ref.resource)]
        if owner is None or not (resource := await self._readable(user, owner)):
            return await self._describe_runs(places)
        if resource != _DISTRIBUTED:
            places.append(_Place(owner.cluster_name, owner.namespace, owner.name, resource))
            return await self._describe_runs(places)
        # The distributor works for its object on the hub, and for each cluster.
        places += [
            _Place(cluster, owner.namespace, owner.name, resource, is_target=True)
            for cluster in dict.fromkeys((owner.cluster_name, ref.cluster))
        ]
        runs = await self._describe_runs(places)
        return runs + await _describe_reports(past, ref.cluster, owner)

    async def _readable(self, user: User, owner: Owner) -> str:
        """The resource of an owner that the user may get; empty if there is none such."""
        if _is_distributed(owner):
            # The hub decides: whatever cluster the mark names, the reports are of the hub's object.
            right = Right("get", _GROUP, _PLURAL, owner.namespace, owner.name)
            return _DISTRIBUTED if await self._access.is_allowed_on_hub(user, right) else ""
        group = owner.api_version.rpartition("/")[0]
        resource, right = right_to_get(
            await self._catalog.fleet(), group, owner.kind, owner.namespace, owner.name
        )
        at = [owner.cluster_name]
        is_allowed = bool(await authorise_where_decided(self._access, user, right, at))
        return f"{resource.group}/{resource.plural}" if resource is not None and is_allowed else ""

    async def _describe_runs(self, places: Sequence[_Place]) -> list[dict[str, Any]]:
        keys = dict.fromkeys((place.cluster, place.namespace, place.name) for place in places)
        runs = await self._runs.last_runs(list(keys))
        return [_run(run) for run in runs if any(place.fits(run) for place in places)]


def _is_distributed(owner: Owner) -> bool:
    return owner.kind == _KIND and owner.api_version.rpartition("/")[0] == _GROUP


async def _describe_reports(past: Asked, cluster: str, owner: Owner) -> list[dict[str, Any]]:
    """The last reports of the distributor about its object in a cluster."""
    latest: list[DistributionEvent] = []
    try:
        subject = distribution_filter(namespace=owner.namespace, name=owner.name, cluster=cluster)
        async for page in read_messages(past.bus, DISTRIBUTION_STREAM, subject, start=past.at):
            events = [decode_distribution_event(message.body) for message in page]
            latest += [event for event in events if event is not None]
            latest = latest[-_MOST_REPORTS:]
    except (InvalidName, NoStream):
        return []  # no such object can exist, or no distributor has run here
    return [_report(event) for event in latest]


def _run(controller_run: ControllerRun) -> dict[str, Any]:
    run = controller_run.run
    return {
        "time": _time(run.ended),
        "stage": "reconcile",
        "controller": controller_run.request.controller,
        "request": {
            "cluster": controller_run.request.cluster,
            "namespace": controller_run.request.namespace,
            "name": controller_run.request.name,
        },
        "outcome": run.outcome.value,
        "attempt": run.attempt,
        "queuedAt": _time(run.queued),
        "startedAt": _time(run.started),
        "endedAt": _time(run.ended),
        "waitedSeconds": round(max(0.0, run.started - run.queued), 6),
        "ranSeconds": round(run.ended - run.started, 6),
        "error": run.error,
    }


def _report(event: DistributionEvent) -> dict[str, Any]:
    return {
        "time": event.time,
        "stage": "distribution",
        "owner": {"kind": _KIND, "namespace": event.namespace, "name": event.name},
        "event": event.event.value,
        "revision": event.revision,
        "wave": event.wave,
        "objects": [obj.object for obj in event.objects],
        "reason": event.reason,
        "message": event.message,
    }


def _time(seconds: float) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, UTC))
