"""What the snapshot knows about clusters and resources, beside their objects."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Self

import msgspec

HEARD_WITHIN: Final = timedelta(seconds=90)
"""A resource not heard of for longer is never called complete (rule A4)."""


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
    connected: bool = False
    reason: str = ""
    message: str = ""
    last_heard: str = ""
    joined_at: str = ""


class ResourceRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One watched resource of one cluster, as kept in Redis (JSON)."""

    group: str
    version: str
    plural: str
    kind: str = ""
    namespaced: bool = True
    scope: str = ""
    state: ResourceState = ResourceState.UNKNOWN
    reason: str = ""
    last_heard: str = ""
    resource_version: str = ""
    """The watcher's low-water mark: every event up to it is on the bus."""
    epoch: str = ""
    """The last completed rank, `<list resourceVersion> <epoch id>`."""

    @property
    def key(self) -> str:
        """The resource key: `apps/deployments`."""
        return f"{self.group}/{self.plural}"


@dataclass(frozen=True, slots=True)
class Freshness:
    """How much one resource of one cluster can be relied on.

    Attributes:
        state: its sync gate; `unknown` when the cluster or the resource is not known.
        age: time since the cluster was last heard of; None when never.
        is_complete: synced, and heard of within 90 s (rule A4).
        reason: why it is not complete; empty when it is.
    """

    state: ResourceState
    age: timedelta | None
    is_complete: bool
    reason: str

    @classmethod
    def of(cls, record: ResourceRecord | None, now: datetime) -> Self:
        """Judge a record; None is a resource nobody has told of (rule P14)."""
        if record is None:
            return cls(ResourceState.UNKNOWN, None, is_complete=False, reason="never heard of")
        age = _age(record.last_heard, now)
        reason = _why_incomplete(record, age)
        return cls(record.state, age, is_complete=not reason, reason=reason)


def _why_incomplete(record: ResourceRecord, age: timedelta | None) -> str:
    if record.state is not ResourceState.SYNCED:
        return record.reason or f"{record.state}"
    if age is None:
        return "never heard of"
    if age > HEARD_WITHIN:
        return f"not heard of for {age.total_seconds():.0f} s"
    return ""


def _age(last_heard: str, now: datetime) -> timedelta | None:
    """Time since then; a watcher's clock that runs ahead makes no negative age."""
    try:
        heard = datetime.fromisoformat(last_heard)
    except ValueError:
        return None
    if heard.tzinfo is None:
        heard = heard.replace(tzinfo=UTC)
    return max(now - heard, timedelta())
