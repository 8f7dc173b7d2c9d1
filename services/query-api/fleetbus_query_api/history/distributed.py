"""Finds the distributor's part in the changes of a period (rule A9).

An object that a MultiClusterResource wrote is a change like any other: nobody else made it. So it
is shown, with the name of the MultiClusterResource; and beside the changes stand the reports that
explain them: corrected drift, failed rollouts, what was undone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from fleetbus.bus.connection import Bus, NoStream
from fleetbus.bus.stream_reads import StoredMessage, read_messages
from fleetbus.errors import MalformedOwner
from fleetbus.ownership import OWNER_UID_LABEL, owner_of
from fleetbus.process.clock import rfc3339
from fleetbus.snapshot.guard import read_terms
from fleetbus_proto.distribution import (
    AffectedObject,
    DistributionEvent,
    decode_distribution_event,
)
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, DistributionVerb, distribution_filter
from fleetbus_query_api.access.authorise import Access
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.operations.held_deletions import MULTI_CLUSTER_RESOURCES
from fleetbus_query_api.requests.user import User

KIND: Final = "MultiClusterResource"
_GROUP: Final = "fleetbus.dev"
_MARK: Final = OWNER_UID_LABEL.encode()
_SHOWN: Final = frozenset(
    {
        DistributionVerb.DRIFTED,
        DistributionVerb.CORRECTED,
        DistributionVerb.CONFLICT,
        DistributionVerb.FAILED,
        DistributionVerb.HELD,
        DistributionVerb.RELEASED,
        DistributionVerb.WAVE_FAILED,
        DistributionVerb.PAUSED,
        DistributionVerb.RESUMED,
        DistributionVerb.COMPLETE,
        DistributionVerb.UNDONE,
    }
)
"""The others repeat what the changes show, or pass."""
_MAX_REPORTS: Final = 5_000
"""Different reports of a period that are listed apart."""


class Writer(NamedTuple):
    """A MultiClusterResource; both are empty for none."""

    namespace: str = ""
    name: str = ""

    def render(self) -> dict[str, str] | None:
        """As in answers."""
        if not self.name:
            return None
        return {"kind": KIND, "namespace": self.namespace, "name": self.name}


NOBODY: Final = Writer()


class Ownership(NamedTuple):
    """The owner of an object.

    Attributes:
        is_owned: another object does, such as a ReplicaSet or that of a reconciler.
        writer: the MultiClusterResource that wrote it otherwise.
    """

    is_owned: bool
    writer: Writer = NOBODY


_UNOWNED: Final = Ownership(is_owned=False)
_OWNED: Final = Ownership(is_owned=True)


def read_ownership(body: bytes | None) -> Ownership:
    """Read what owns an object from its JSON."""
    terms = read_terms(body) if body else None
    if body is None or terms is None or not terms.owners:
        return _UNOWNED
    if _MARK not in body:
        return _OWNED
    try:
        owner = owner_of(decode(body))
    except (MalformedOwner, UnreadableBody):
        return _OWNED
    # Whatever copies its labels, like the Endpoints of a Service, has no annotation of ours.
    if owner is None or owner.kind != KIND or owner.api_version.partition("/")[0] != _GROUP:
        return _OWNED
    if terms.owners != owner.uid:
        return _OWNED  # an ownerReference names another one, too
    return Ownership(is_owned=False, writer=Writer(owner.namespace, owner.name))


def read_mark(body: bytes | None) -> Ownership:
    """The same, of an object whose ownerReferences were looked at: costs nothing without a mark."""
    return read_ownership(body) if body and _MARK in body else _UNOWNED


class Visible:
    """Decides which MultiClusterResources a user may know of; the hub's RBAC does (rule A1).

    Args:
        access: asks the hub.
        user: who asks.
    """

    def __init__(self, access: Access, user: User) -> None:
        self._access = access
        self._user = user
        self._namespaces: dict[str, bool] = {}

    async def includes(self, namespace: str) -> bool:
        """Whether the user may list those of a namespace.

        Raises:
            UnavailableProblem: the hub does not decide.
        """
        for place in ("", namespace):  # who may list all of them needs one review
            if place not in self._namespaces:
                right = replace(MULTI_CLUSTER_RESOURCES, namespace=place)
                self._namespaces[place] = await self._access.is_allowed_on_hub(self._user, right)
            if self._namespaces[place]:
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFilter:
    """Which reports concern a question.

    Attributes:
        clusters: only of these; empty for all.
        namespace: only about objects in it; empty for all.
        kinds: only about objects of these groups and kinds; empty for all.
    """

    clusters: Collection[str] = ()
    namespace: str = ""
    kinds: Collection[tuple[str, str]] = ()

    def matches(self, event: DistributionEvent) -> bool:
        """Whether an event is among them; one about no cluster is about all of them."""
        if event.event not in _SHOWN:
            return False
        if self.clusters and event.cluster and event.cluster not in self.clusters:
            return False
        if not event.objects:
            return not self.kinds and self.namespace in ("", event.namespace)
        return any(map(self._matches_object, event.objects))

    def _matches_object(self, affected: AffectedObject) -> bool:
        kind, _, place = affected.object.partition(" ")
        is_in = not self.namespace or place.startswith(f"{self.namespace}/")
        return is_in and (not self.kinds or (affected.group, kind) in self.kinds)


@dataclass(slots=True)
class _Report:
    """Equal events of several clusters and times."""

    event: DistributionEvent
    first: datetime
    last: datetime
    count: int = 0
    clusters: set[str] = field(default_factory=set[str])

    def render(self) -> dict[str, Any]:
        event = self.event
        return {
            "owner": Writer(event.namespace, event.name).render(),
            "event": event.event.value,
            "clusters": sorted(self.clusters),
            "revision": event.revision,
            "wave": event.wave,
            "objects": [
                {"object": obj.object, "field": obj.field, "manager": obj.manager}
                for obj in event.objects
            ],
            "moreObjects": event.more,
            "reason": event.reason,
            "message": event.message,
            "first": rfc3339(self.first),
            "last": rfc3339(self.last),
            "count": self.count,
        }


async def read_reports(
    bus: Bus, since: datetime, until: datetime, report_filter: ReportFilter, visible: Visible
) -> list[dict[str, Any]]:
    """Describe the reports of a period, equal ones as one, the latest first.

    Raises:
        UnavailableProblem: the hub does not decide.
        BusError: the stream cannot be read.
    """
    reports: dict[Any, _Report] = {}
    try:
        async for page in read_messages(
            bus, DISTRIBUTION_STREAM, distribution_filter(), start=since
        ):
            for message, event in _decode(page):
                if message.stored_at > until:
                    break
                if report_filter.matches(event) and await visible.includes(event.namespace):
                    _add(reports, event, message.stored_at)
    except NoStream:
        return []  # no distributor has run here
    latest = sorted(reports.values(), key=lambda report: report.last, reverse=True)
    return [report.render() for report in latest]


def _decode(page: Iterable[StoredMessage]) -> Iterable[tuple[StoredMessage, DistributionEvent]]:
    for message in page:
        event = decode_distribution_event(message.body)
        if event is not None:
            yield message, event


def _add(reports: dict[Any, _Report], event: DistributionEvent, at: datetime) -> None:
    objects = tuple((obj.object, obj.field, obj.manager) for obj in event.objects)
    key = (
        *(event.namespace, event.name, event.event, event.revision, event.wave),
        *(event.reason, event.message, objects, event.more),
    )
    if key not in reports and len(reports) >= _MAX_REPORTS:
        reports.pop(next(iter(reports)))
    report = reports.setdefault(key, _Report(event, at, at))
    report.last = at
    report.count += 1
    if event.cluster:
        report.clusters.add(event.cluster)


async def visible_writers(writers: Iterable[Writer], visible: Visible) -> Mapping[Writer, Any]:
    """Render the MultiClusterResources that a user may know of; the others are None."""
    rendered: dict[Writer, Any] = {}
    for writer in dict.fromkeys(writers):
        is_shown = writer != NOBODY and await visible.includes(writer.namespace)
        rendered[writer] = writer.render() if is_shown else None
    return rendered
