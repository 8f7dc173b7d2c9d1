"""What the snapshot knows about clusters and resources, beside their objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Self

import msgspec

from fleetbus_proto.versions import version_key

REPORTED_WITHIN: Final = timedelta(seconds=90)
"""A cluster that no watcher has reported for longer counts as not watched."""
ANSWERED_WITHIN: Final = timedelta(seconds=30)
"""Nothing of a cluster is complete whose API server has been silent for longer (rule A4)."""
_PLAIN: Final = re.compile(r"[-0-9A-Za-z]{1,64}")


class ResourceState(StrEnum):
    """The sync gate of one resource of one cluster (rule P14)."""

    UNKNOWN = "unknown"
    LISTING = "listing"
    SYNCED = "synced"
    STALE = "stale"
    DEGRADED = "degraded"


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One cluster of the fleet, as kept in Redis (JSON). Times are RFC 3339."""

    name: str
    labels: dict[str, str] = {}
    hub: bool = False
    provider: str = ""
    host: str = ""
    server_version: str = ""
    incarnation: int = 0
    uid: str = ""
    """Of kube-system: which cluster this is, as the hub has accepted it (rule W13)."""
    uid_since: int = 0
    """When that was, in ms."""
    uid_verified: bool = False
    """Whether the hub has read it itself, or somebody consented; else a watcher has told it."""
    refused_uid: str = ""
    """Another one, of which a watcher told last; its messages are refused."""
    refused_at: str = ""
    """When that was."""
    connected: bool = False
    reason: str = ""
    message: str = ""
    last_answer: str = ""
    """When its API server last sent anything, as its watchers say (rule W11)."""
    reported_at: str = ""
    """When a watcher last reported it."""
    clock_ahead: float = 0.0
    """By how many seconds the clock of a watcher was ahead when its messages were refused (B8)."""
    clock_reported_at: str = ""
    """When that was, last."""
    joined_at: str = ""
    invalid: list[str] = []
    """Entries of its watch list that mean nothing, each with the reason."""

    def age(self, now: datetime) -> timedelta | None:
        """Time since its API server last answered; None when it never did."""
        return _age(self.last_answer, now)

    def why_refused(self, now: datetime) -> str:
        """Why messages of its watchers are refused these days; '' if they are not (B8, W13)."""
        if replaced := self.why_replaced(now):
            return replaced
        told = _age(self.clock_reported_at, now)
        if told is None or told > REPORTED_WITHIN:
            return ""
        return (
            f"its watcher's clock is {self.clock_ahead / 3600:.0f} h ahead of the projector's,"
            " so that messages are refused"
        )

    def why_replaced(self, now: datetime) -> str:
        """Which other cluster its watchers tell of, and what to do about it; '' if none (W13)."""
        told = _age(self.refused_at, now)
        if told is None or told > REPORTED_WITHIN:
            return ""
        # A watcher chose this text; a person may paste the command.
        is_plain = _PLAIN.fullmatch(self.refused_uid) is not None
        consent = f"fleetbus clusters accept {self.name} --uid {self.refused_uid}"
        return (
            f"its watcher tells of another cluster: kube-system has UID {self.refused_uid!r:.80},"
            f" not the accepted {self.uid}" + (f"; to consent: {consent}" if is_plain else "")
        )

    def why_silent(self, now: datetime) -> str:
        """Why nothing of it is known to be so still; empty when its API server answers (A4)."""
        if refused := self.why_refused(now):
            return refused
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
    """One scope of a resource: a namespace of it, a selection, or (named '') all of it."""

    namespace: str = ""
    """Its only namespace; empty when it has them all."""
    state: ResourceState = ResourceState.UNKNOWN
    reason: str = ""
    last_received: str = ""
    """When the last byte of its list or watch was received; a quiet one may have none for long."""
    reported_at: str = ""
    """When a watcher last reported it."""
    resource_version: str = ""
    """The watcher's low-water mark."""
    epoch: str = ""
    """The last completed rank, `<list resourceVersion> <epoch id>`."""


class ResourceRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One watched resource of one cluster, as kept in Redis (JSON).

    What it says of the resource is no better than the worst of its scopes (rule P14).
    """

    group: str
    version: str
    plural: str
    kind: str = ""
    namespaced: bool = True
    state: ResourceState = ResourceState.UNKNOWN
    reason: str = ""
    last_received: str = ""
    """When the last byte was received for the scope that has been quiet longest."""
    resource_version: str = ""
    """The watcher's lowest low-water mark: every event up to it is on the bus."""
    epoch: str = ""
    """The oldest of the last completed ranks; empty before every scope has one."""
    scopes: dict[str, ScopeRecord] = {}
    """Every scope that is watched, by its hash."""
    is_declared: bool = False
    """Whether a watcher has told which scopes there are; before, some may be missing."""

    @property
    def key(self) -> str:
        """The resource key: `apps/deployments`."""
        return f"{self.group}/{self.plural}"

    @property
    def epoch_id(self) -> int:
        """The highest epoch id that was completed in any scope; 0 for none."""
        ranks = [self.epoch, *(scope.epoch for scope in self.scopes.values())]
        return max(_rank_key(rank)[1] for rank in ranks)

    def covers(self, namespace: str) -> bool:
        """Whether a namespace is watched; of a whole resource, and of all namespaces, it is."""
        watched = {scope.namespace for scope in self.scopes.values()}
        return not namespace or not watched or not watched.isdisjoint({"", namespace})

    def with_scopes(self, scopes: Mapping[str, ScopeRecord]) -> ResourceRecord:
        """The same resource with these scopes, and what follows from them."""
        found = list(scopes.values())
        worst = min(found, key=lambda scope: _WORST_FIRST.index(scope.state))
        state, reason = worst.state, worst.reason
        if not self.is_declared and "" not in scopes and state not in _NEVER_LISTED:
            state, reason = ResourceState.LISTING, "not every scope is known yet"
        return msgspec.structs.replace(
            self,
            state=state,
            reason=reason,
            last_received=min(scope.last_received for scope in found),
            resource_version=min((s.resource_version for s in found), key=version_key),
            epoch=min((scope.epoch for scope in found), key=_rank_key),
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
    """How much one resource of one cluster can be relied on.

    Attributes:
        state: its sync gate; `unknown` when the cluster or the resource is not known.
        age: time since the cluster's API server last answered; None when never.
        is_complete: synced, its watch stands, and the API server answered within 30 s (rule A4).
        reason: why it is not complete; empty when it is.
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
        """Judge a record; None is a resource nobody has told of (rule P14).

        Args:
            record: what is known of the resource.
            cluster: what is known of its cluster.
            now: the time to measure its age from.
            namespace: the only one that is asked for; empty for all that are watched.
            is_settled: whether the store has all that was ever written to it (rule P11).
        """
        if record is None or cluster is None:
            return cls(ResourceState.UNKNOWN, None, is_complete=False, reason="never reported")
        if not record.covers(namespace):
            reason = f"namespace {namespace!r} is not watched"
            return cls(ResourceState.UNKNOWN, None, is_complete=False, reason=reason)
        age = _age(cluster.last_answer, now)
        if not is_settled and record.state not in _NEVER_LISTED:
            reason = "the store went back in time, and is being read again"
            return cls(ResourceState.LISTING, age, is_complete=False, reason=reason)
        reason = cluster.why_silent(now)
        if not reason and record.state is not ResourceState.SYNCED:
            reason = record.reason or f"{record.state}"
        return cls(record.state, age, is_complete=not reason, reason=reason)


def _age(time: str, now: datetime) -> timedelta | None:
    """Time since then; a watcher's clock that runs ahead makes no negative age."""
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        return None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return max(now - found, timedelta())
