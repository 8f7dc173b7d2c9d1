"""How far one resource is, as heartbeats and readiness tell it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from fleetbus.kube.discovery import ApiResource
from fleetbus_proto.events import ResourceStatus
from fleetbus_watcher.follow.low_water_mark import LowWater

State = Literal["listing", "watching", "failing"]
_STANDS_AFTER: Final = timedelta(seconds=1)
"""A watch that was accepted, and has lasted so long, is sound however quiet it is (W11)."""
_WAITS: Final = ("WaitingForGrant", "waits for its turn to be listed")


class Progress:
    """The state of one watched resource.

    Args:
        api: the resource.
        scope: the hash of what narrows it.
        namespace: its only one; empty for all.
        changed: called when a reader would want to know.
    """

    def __init__(
        self, api: ApiResource, scope: str, namespace: str, changed: Callable[[], None]
    ) -> None:
        self._api = api
        self._scope = scope
        self._namespace = namespace
        self._changed = changed
        self._state: State = "listing"
        # What is wrong now; the next byte from the server heals it, or a watch that stands.
        self._trouble: tuple[str, str] | None = None
        # What was lost on the way; only the next complete epoch heals it (W16).
        self._loss: tuple[str, str] | None = None
        self._heard: datetime | None = None
        self._mark: LowWater | None = None
        # By a monotonic clock: the last byte and change.
        self._heard_at = self._event_at = time.monotonic()
        # The watches that the server has accepted, and that are not over.
        self._open: set[object] = set()
        self._stands: asyncio.TimerHandle | None = None
        # Whether the list waits for the projector's grant (W7).
        self._waits = False

    @property
    def name(self) -> str:
        """Of the resource, for people."""
        return str(self._api.resource)

    @property
    def is_settled(self) -> bool:
        """Whether the first sync is over: complete, or failing with a reason."""
        is_watched = self._state == "watching" and bool(self._open)
        return is_watched or bool(self._trouble or self._loss)

    @property
    def is_followed(self) -> bool:
        """Whether everything is listed, or need not be, and the watch is open."""
        return self._state == "watching" and bool(self._open) and not self._trouble

    @property
    def no_access(self) -> str:
        """Why the server cannot be asked: it does not answer, or knows us not; else empty."""
        reason = self._trouble[0] if self._trouble is not None else ""
        return reason if reason in ("Unreachable", "Unauthorized") else ""

    @property
    def has_loss(self) -> bool:
        """Whether something was lost that no complete epoch has made good yet (W16)."""
        return self._loss is not None

    def listing(self) -> None:
        """A list has begun, or wants to."""
        if self._waits:
            self._waits = False
            self._changed()
        self._set("listing", self._trouble, self._loss)

    def waiting(self) -> None:
        """The list has to wait for its turn in the fleet."""
        self._waits = True
        self._changed()

    def listed(self, *, heals: bool = True) -> None:
        """An epoch is complete; it heals no loss of its own watch, which may be newer."""
        self._set("watching", None, None if heals else self._loss)

    def watching(self, mark: LowWater) -> None:
        """A watch goes on from this mark."""
        self._mark = mark

    def resumed(self) -> None:
        """A watch goes on from a checkpoint: no list is needed."""
        self._set("watching", self._trouble, self._loss)

    def told_change(self) -> None:
        """A watch told of a change."""
        self._event_at = time.monotonic()

    def opened(self, watch: object, *, heals: bool = True) -> None:
        """The server has accepted a watch; see `heard`."""
        self._set_open(self._open | {watch})
        if heals and self._trouble is not None and self._stands is None:
            loop = asyncio.get_running_loop()
            self._stands = loop.call_later(_STANDS_AFTER.total_seconds(), self._heal)

    def closed(self, watch: object) -> None:
        """A watch is over, or was cut."""
        self._set_open(self._open - {watch})
        if not self._open:
            self._doubt()

    @property
    def heard_age(self) -> float:
        """Seconds since the last byte."""
        return time.monotonic() - self._heard_at

    @property
    def event_age(self) -> float:
        """Seconds since the last change."""
        return time.monotonic() - self._event_at

    @property
    def lag(self) -> float:
        """Seconds that the oldest change waits to be stored."""
        return self._mark.lag_seconds if self._mark else 0.0

    def heard(self, *, heals: bool = True) -> None:
        """A byte came; one of a watch that goes on beside a list heals no trouble of the list."""
        self._heard = datetime.now(UTC)
        self._heard_at = time.monotonic()
        if heals and self._trouble is not None:
            self._heal()

    def failed(self, reason: str, message: str) -> None:
        """An attempt failed; another one follows."""
        self._doubt()
        self._set(self._state, (reason, message), self._loss)

    def lost(self, reason: str, message: str) -> None:
        """An object could not be published at all."""
        self._set(self._state, self._trouble, (reason, message))

    def status(self) -> ResourceStatus:
        """What a heartbeat says of it."""
        wrong = self._trouble or self._loss
        told = wrong or (_WAITS if self._waits else ("", ""))
        resource = self._api.resource
        return ResourceStatus(
            group=resource.group,
            version=resource.version,
            resource=resource.plural,
            kind=self._api.kind,
            namespaced=self._api.namespaced,
            scope=self._scope,
            namespace=self._namespace,
            state="failing" if wrong else self._state,
            watch_open=bool(self._open),
            reason=told[0],
            message=told[1],
            last_received=self._heard.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if self._heard else "",
            resource_version=self._mark.resource_version if self._mark else "",
            lag_seconds=round(self.lag, 3),
        )

    def _heal(self) -> None:
        self._doubt()
        self._set(self._state, None, self._loss)

    def _doubt(self) -> None:
        """Whether a watch stands has to be seen anew."""
        if self._stands is not None:
            self._stands.cancel()
            self._stands = None

    def _set_open(self, found: set[object]) -> None:
        if bool(found) != bool(self._open):
            self._changed()
        self._open = found

    def _set(
        self, state: State, trouble: tuple[str, str] | None, loss: tuple[str, str] | None
    ) -> None:
        before = (self._state, self._trouble, self._loss)
        self._state, self._trouble, self._loss = state, trouble, loss
        if before != (state, trouble, loss):
            self._changed()


def tell_unsettled(found: Iterable[Progress]) -> str:
    """Which first syncs are neither complete nor failing; empty when none is."""
    waiting = [progress.name for progress in found if not progress.is_settled]
    return f"first sync of {', '.join(waiting[:5])}" if waiting else ""


def tell_no_access(found: Sequence[Progress]) -> tuple[str, str]:
    """Reason and message if no resource can be asked for; empty when one can."""
    if found and all(progress.no_access for progress in found):
        return (found[0].no_access, found[0].status().message)
    return ("", "")
