"""The records of clusters and resources in the snapshot, and how reliable its answers are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Self

import msgspec

from fleetbus_proto.events import PrinterColumn
from fleetbus_proto.versions import version_key

REPORTED_WITHIN: Final = timedelta(seconds=90)
"""A cluster that no watcher has reported for longer counts as not watched."""
ANSWERED_WITHIN: Final = timedelta(seconds=30)
"""No answer about a cluster is complete if its API server has been silent for longer (rule A4)."""
_PLAIN: Final = re.compile(r"[-0-9A-Za-z]{1,64}")


class ResourceState(StrEnum):
    """The sync gate of one resource of one cluster (rule P14)."""

    UNKNOWN = "unknown"
    LISTING = "listing"
    SYNCED = "synced"
    STALE = "stale"
    DEGRADED = "degraded"


class AgentContact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The agents of a cluster, as the last request of the projector found them (rule P17)."""

    connected: bool = False
    """Whether one of them took the request."""
    reason: str = ""
    """Why none did, like `AgentNotConnected`, or why its API server did not answer."""
    message: str = ""
    answered_at: str = ""
    """When one of them last answered; empty for never."""


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One cluster of the fleet, as kept in Redis (JSON). Times are RFC 3339."""

    name: str
    labels: dict[str, str] = {}
    hub: bool = False
    provider: str = ""
    host: str = ""
    server_version: str = ""
    platform: str = ""
    """Platform of its API server, like `linux/amd64`."""
    incarnation: int = 0
    uid: str = ""
    """The accepted UID of its namespace kube-system: which cluster this is (rule W13)."""
    uid_since: int = 0
    """When it was accepted, in ms."""
    uid_verified: bool = False
    """Whether the hub has read it itself, or somebody consented; else a watcher reported it."""
    refused_uid: str = ""
    """The other UID that a watcher reported last; its messages are refused."""
    refused_at: str = ""
    """When it was reported."""
    connected: bool = False
    connected_by: str = ""
    """Which replica of its watchers last reported it connected: while it does, another one that
    cannot reach the cluster does not count."""
    connected_at: str = ""
    """When."""
    reason: str = ""
    message: str = ""
    last_answer: str = ""
    """When its API server last sent anything, as reported by its watchers (rule W11)."""
    reported_at: str = ""
    """When a watcher last reported it."""
    clock_ahead: float = 0.0
    """By how many seconds the clock of a watcher was ahead when its messages were refused (B8)."""
    clock_reported_at: str = ""
    """When that was last reported."""
    joined_at: str = ""
    invalid: list[str] = []
    """Invalid entries of its watch spec, each with the reason."""
    overridden: list[str] = []
    """Settings of its watchers that its watch spec replaces, each with both values."""
    access: str = "Direct"
    """The way to its API server: `Direct` or `Agent`."""
    agent: AgentContact | None = None
    """Its agents; None until they are asked, and for direct access."""

    def age(self, now: datetime) -> timedelta | None:
        """Time since its API server last answered; None if it never did."""
        return _age(self.last_answer, now)

    def why_refused(self, now: datetime) -> str:
        """Why messages of its watchers are refused at present; empty if they are not (B8, W13)."""
        if replaced := self.why_replaced(now):
            return replaced
        age = _age(self.clock_reported_at, now)
        if age is None or age > REPORTED_WITHIN:
            return ""
        return (
            f"its watcher's clock is {self.clock_ahead / 3600:.0f} h ahead of the projector's,"
            " so that messages are refused"
        )

    def why_replaced(self, now: datetime) -> str:
        """Which other cluster its watchers report, and what to do; empty if none (rule W13)."""
        age = _age(self.refused_at, now)
        if age is None or age > REPORTED_WITHIN:
            return ""
        # A watcher chose this UID, and a person may paste the command into a shell.
        is_plain = _PLAIN.fullmatch(self.refused_uid) is not None
        consent = f"fleetbus clusters accept {self.name} --uid {self.refused_uid}"
        return (
            f"its watcher reports another cluster: kube-system has UID {self.refused_uid!r:.80},"
            f" not the accepted {self.uid}" + (f"; to consent: {consent}" if is_plain else "")
        )

    def why_silent(self, now: datetime) -> str:
        """Why its state may be out of date; empty while its API server answers (rule A4)."""
        if refused := self.why_refused(now):
            return refused
        silent = self._why_unanswered(now)
        if silent and self.agent is not None and not self.agent.connected and self.agent.message:
            return f"{silent}; {self.agent.message}"
        return silent

    def _why_unanswered(self, now: datetime) -> str:
        if not self.connected:
            return self.message or self.reason or "not connected"
        age = self.age(now)
        if age is None:
            return "its API server has not answered yet"
        if age <= ANSWERED_WITHIN:
            return ""
        reported = _age(self.reported_at, now)
        if reported is None or reported > ANSWERED_WITHIN:
            return f"its watcher has been silent for {(reported or age).total_seconds():.0f} s"
        return f"its API server has not answered for {age.total_seconds():.0f} s"


class ScopeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One scope of a resource: one namespace, a selection, or (with the name '') all of it."""

    namespace: str = ""
    """Its only namespace; empty for all namespaces."""
    state: ResourceState = ResourceState.UNKNOWN
    reason: str = ""
    last_received: str = ""
    """When the last byte of its list or watch was received; a quiet watch may receive few."""
    reported_at: str = ""
    """When a watcher last reported it."""
    watched_by: str = ""
    """Which replica of its watchers last reported an open watch: while it does, another one that
    has none does not count."""
    watched_at: str = ""
    """When."""
    resource_version: str = ""
    """The watcher's low-water mark."""
    epoch: str = ""
    """The last completed rank, `<list resourceVersion> <epoch id>`."""


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The names and printer columns of a resource that is not built into Kubernetes."""

    singular: str = ""
    short_names: list[str] = []
    categories: list[str] = []
    list_kind: str = ""
    """Empty for the kind with `List` behind it."""
    columns: list[PrinterColumn] = []


class ResourceType(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The lasting part of a resource's record: what its objects are."""

    group: str
    version: str
    plural: str
    kind: str = ""
    namespaced: bool = True
    definition: Definition | None = None
    """None for a built-in resource, and until a watcher has reported it."""

    @property
    def key(self) -> str:
        """The resource key: `apps/deployments`."""
        return f"{self.group}/{self.plural}"


class ResourceRecord(ResourceType, frozen=True, kw_only=True, rename="camel"):
    """One watched resource of one cluster, as kept in Redis (JSON).

    Its state is that of the worst of its scopes (rule P14).
    """

    state: ResourceState = ResourceState.UNKNOWN
    reason: str = ""
    last_received: str = ""
    """When the last byte was received for the scope that has been quiet longest."""
    resource_version: str = ""
    """The lowest low-water mark of its scopes: every event up to it is on the bus."""
    epoch: str = ""
    """The oldest of the last completed ranks of its scopes; empty until every scope has one."""
    scopes: dict[str, ScopeRecord] = {}
    """The watched scopes, by hash."""
    is_declared: bool = False
    """Whether a watcher has reported all scopes; before that some may be missing."""

    @property
    def epoch_id(self) -> int:
        """The highest completed epoch id of any scope; 0 for none."""
        ranks = [self.epoch, *(scope.epoch for scope in self.scopes.values())]
        return max(_rank_key(rank)[1] for rank in ranks)

    def covers(self, namespace: str) -> bool:
        """Whether a namespace is watched; an empty one means whichever are watched."""
        watched = {scope.namespace for scope in self.scopes.values()}
        return not namespace or not watched or not watched.isdisjoint({"", namespace})

    def with_scopes(self, scopes: Mapping[str, ScopeRecord]) -> ResourceRecord:
        """Return the record with these scopes, and with the state that follows from them."""
        scope_records = list(scopes.values())
        worst = min(scope_records, key=lambda scope: _WORST_FIRST.index(scope.state))
        state, reason = worst.state, worst.reason
        if not self.is_declared and "" not in scopes and state not in _NEVER_LISTED:
            state, reason = ResourceState.LISTING, "not every scope is known yet"
        return msgspec.structs.replace(
            self,
            state=state,
            reason=reason,
            last_received=min(scope.last_received for scope in scope_records),
            resource_version=min((s.resource_version for s in scope_records), key=version_key),
            epoch=min((scope.epoch for scope in scope_records), key=_rank_key),
            scopes=dict(scopes),
        )


_NEVER_LISTED: Final = (ResourceState.UNKNOWN, ResourceState.LISTING)
_WORST_FIRST: Final = (
    *_NEVER_LISTED,
    ResourceState.DEGRADED,
    ResourceState.STALE,
    ResourceState.SYNCED,
)


def _rank_key(rank: str) -> tuple[tuple[int, str], int]:
    version, _, epoch_id = rank.partition(" ")
    return (version_key(version), int(epoch_id) if epoch_id.isdigit() else 0)


@dataclass(frozen=True, slots=True)
class Freshness:
    """Reliability of the snapshot for one resource of one cluster.

    Attributes:
        state: its sync gate; `unknown` if the cluster or the resource is unknown.
        age: time since the cluster's API server last answered; None if it never did.
        is_complete: synced, and the API server answered within 30 s (rule A4).
        reason: why it is not complete; empty if it is.
    """

    state: ResourceState
    age: timedelta | None
    is_complete: bool
    reason: str

    @classmethod
    def of(
        cls,
        record: ResourceRecord | None,
        cluster: ClusterRecord | None,
        now: datetime,
        namespace: str = "",
        *,
        is_settled: bool = True,
    ) -> Self:
        """Evaluate a record; None is a resource that nobody has reported (rule P14).

        Args:
            record: of the resource.
            cluster: the record of its cluster.
            now: the time to measure ages from.
            namespace: the only one requested; empty for all that are watched.
            is_settled: whether the store has not lost writes, or has caught up (rule P11).
        """
        if record is None or cluster is None:
            return cls(ResourceState.UNKNOWN, None, is_complete=False, reason="never reported")
        if not record.covers(namespace):
            reason = f"namespace {namespace!r} is not watched"
            return cls(ResourceState.UNKNOWN, None, is_complete=False, reason=reason)
        age = _age(cluster.last_answer, now)
        if not is_settled and record.state not in _NEVER_LISTED:
            reason = "the store lost its last writes, and the stream is being read again"
            return cls(ResourceState.LISTING, age, is_complete=False, reason=reason)
        reason = cluster.why_silent(now)
        if not reason and record.state is not ResourceState.SYNCED:
            reason = record.reason or f"{record.state}"
        return cls(record.state, age, is_complete=not reason, reason=reason)


def _age(time: str, now: datetime) -> timedelta | None:
    """Time since then; never negative, even if the watcher's clock runs ahead."""
    if not time:
        return None
    try:
        parsed = datetime.fromisoformat(time)
    except ValueError:
        return None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return max(now - parsed, timedelta())
