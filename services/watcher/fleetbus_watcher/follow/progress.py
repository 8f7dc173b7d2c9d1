"""The state of one watched resource, as heartbeats and readiness report it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.process.clock import rfc3339
from fleetbus_proto.events import ResourceStatus
from fleetbus_watcher.follow.low_water_mark import LowWaterMark

State = Literal["listing", "watching", "failing"]
_STABLE_AFTER: Final = timedelta(seconds=1)
"""An accepted watch that has lasted so long is healthy, however quiet it is (rule W11)."""
_WAITING: Final = ("WaitingForGrant", "waits for a grant to be listed")


class Progress:
    """The state of one watched resource.

    Args:
        api: the resource.
        scope: the hash of what narrows it.
        namespace: its only one; empty for all.
        changed: set when the next heartbeat should not wait.
    """

    def __init__(
        self, api: ApiResource, scope: str, namespace: str, changed: asyncio.Event
    ) -> None:
        self._api = api
        self._scope = scope
        self._namespace = namespace
        self._changed = changed
        self._state: State = "listing"
        # The present failure; cleared by the next byte from the server, or a stable watch.
        self._failure: tuple[str, str] | None = None
        # An object that could not be published; only the next complete epoch clears it (W16).
        self._loss: tuple[str, str] | None = None
        self._received: datetime | None = None
        self._mark: LowWaterMark | None = None
        # Monotonic times of the last byte and the last change.
        self._received_at = self._event_at = time.monotonic()
        # The watches that the server has accepted and that are not over.
        self._open: set[object] = set()
        self._stable: asyncio.TimerHandle | None = None
        # Whether the list waits for a grant of the projector (W7).
        self._is_waiting = False

    @property
    def name(self) -> str:
        """Name of the resource, for log lines and probes."""
        return str(self._api.resource)

    @property
    def is_settled(self) -> bool:
        """Whether the first sync is over: complete, or failing with a reason."""
        is_watched = self._state == "watching" and bool(self._open)
        return is_watched or bool(self._failure or self._loss)

    @property
    def is_followed(self) -> bool:
        """Whether the list is complete, or was not needed, and the watch is open."""
        return self._state == "watching" and bool(self._open) and not self._failure

    @property
    def no_access(self) -> str:
        """Why the server cannot be used: Unreachable or Unauthorized; else empty."""
        reason = self._failure[0] if self._failure is not None else ""
        return reason if reason in ("Unreachable", "Unauthorized") else ""

    @property
    def has_loss(self) -> bool:
        """Whether an object was lost and no epoch was complete since (W16)."""
        return self._loss is not None

    def listing(self) -> None:
        """Note that a list has begun, or is about to."""
        if self._is_waiting:
            self._is_waiting = False
            self._changed.set()
        self._set("listing", self._failure, self._loss)

    def waiting(self) -> None:
        """Note that the list waits for a grant."""
        self._is_waiting = True
        self._changed.set()

    def listed(self, *, heals: bool = True) -> None:
        """Note a complete epoch; a loss of its own watch may be newer and is not cleared."""
        self._set("watching", None, None if heals else self._loss)

    def watching(self, mark: LowWaterMark) -> None:
        """Set the low-water mark of the oldest watch."""
        self._mark = mark

    def resumed(self) -> None:
        """Note that the watch resumed from a checkpoint, without a list."""
        self._set("watching", self._failure, self._loss)

    def note_change(self) -> None:
        """Note a change in a watch."""
        self._event_at = time.monotonic()

    def opened(self, watch: object, *, heals: bool = True) -> None:
        """Note that the server has accepted a watch; `heals` as for `receive`."""
        self._set_open(self._open | {watch})
        if heals and self._failure is not None and self._stable is None:
            loop = asyncio.get_running_loop()
            self._stable = loop.call_later(_STABLE_AFTER.total_seconds(), self._heal)

    def closed(self, watch: object) -> None:
        """Note that a watch is over or was cut."""
        self._set_open(self._open - {watch})
        if not self._open:
            self._reset_stable()

    @property
    def received_age(self) -> float:
        """Seconds since the last byte."""
        return time.monotonic() - self._received_at

    @property
    def event_age(self) -> float:
        """Seconds since the last change."""
        return time.monotonic() - self._event_at

    @property
    def lag(self) -> float:
        """Age in seconds of the oldest change that is not stored yet."""
        return self._mark.lag_seconds if self._mark else 0.0

    def receive(self, *, heals: bool = True) -> None:
        """Note a byte; one of a watch kept during a list does not clear a failure of the list."""
        self._received = datetime.now(UTC)
        self._received_at = time.monotonic()
        if heals and self._failure is not None:
            self._heal()

    def failed(self, reason: str, message: str) -> None:
        """Note a failed attempt; another one follows."""
        self._reset_stable()
        self._set(self._state, (reason, message), self._loss)

    def lost(self, reason: str, message: str) -> None:
        """Note that an object could not be published at all."""
        self._set(self._state, self._failure, (reason, message))

    def status(self) -> ResourceStatus:
        """Return the status of the resource for a heartbeat."""
        problem = self._failure or self._loss
        reason, message = problem or (_WAITING if self._is_waiting else ("", ""))
        resource = self._api.resource
        return ResourceStatus(
            group=resource.group,
            version=resource.version,
            resource=resource.plural,
            kind=self._api.kind,
            namespaced=self._api.namespaced,
            scope=self._scope,
            namespace=self._namespace,
            state="failing" if problem else self._state,
            watch_open=bool(self._open),
            reason=reason,
            message=message,
            last_received=rfc3339(self._received) if self._received else "",
            resource_version=self._mark.resource_version if self._mark else "",
            lag_seconds=round(self.lag, 3),
        )

    def _heal(self) -> None:
        self._reset_stable()
        self._set(self._state, None, self._loss)

    def _reset_stable(self) -> None:
        """Start over to wait for a stable watch."""
        if self._stable is not None:
            self._stable.cancel()
            self._stable = None

    def _set_open(self, watches: set[object]) -> None:
        if bool(watches) != bool(self._open):
            self._changed.set()
        self._open = watches

    def _set(
        self, state: State, failure: tuple[str, str] | None, loss: tuple[str, str] | None
    ) -> None:
        before = (self._state, self._failure, self._loss)
        self._state, self._failure, self._loss = state, failure, loss
        if before != (state, failure, loss):
            self._changed.set()
