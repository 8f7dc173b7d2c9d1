"""How far one resource is, as heartbeats and readiness tell it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from fleetbus.kube.discovery import ApiResource
from fleetbus_proto.events import ResourceStatus
from fleetbus_watcher.lowwater import LowWater

State = Literal["listing", "watching", "failing"]
_VAIN_SILENCES: Final = 2
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
        # What is wrong now; the next byte from the server heals it.
        self._trouble: tuple[str, str] | None = None
        # What was lost on the way; only the next complete epoch heals it (W16).
        self._loss: tuple[str, str] | None = None
        self._heard: datetime | None = None
        self._mark: LowWater | None = None
        # W11, by a monotonic clock: the last byte and change, and a server that answers otherwise.
        self._heard_at = self._event_at = self._answered_at = time.monotonic()
        self._has_bookmarks = False
        # Whether the server has accepted the watch once.
        self._is_open = False
        # Whether the list waits for the projector's grant (W7).
        self._waits = False

    @property
    def name(self) -> str:
        """Of the resource, for people."""
        return str(self._api.resource)

    @property
    def is_settled(self) -> bool:
        """Whether the first sync is over: complete, or failing with a reason."""
        return self._state == "watching" or bool(self._trouble or self._loss)

    @property
    def is_followed(self) -> bool:
        """Whether everything is listed, or need not be, and the watch is open."""
        return self._state == "watching" and self._is_open and not self._trouble

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

    def bookmarked(self) -> None:
        """The server sends bookmarks here, so it is never silent for long."""
        self._has_bookmarks = True

    def told_change(self) -> None:
        """A watch told of a change."""
        self._event_at = time.monotonic()

    def opened(self) -> None:
        """The server has accepted a watch."""
        self._is_open = True

    def answered(self) -> None:
        """The server answers other questions; that says nothing of the watch."""
        self._answered_at = time.monotonic()

    def is_dead(self, silence: timedelta) -> bool:
        """Whether the watch stays silent, reconnected twice or more, at a server that answers.

        Only where bookmarks came before: some servers send none, and a restart is no cure for it.
        """
        vain = self._answered_at - self._heard_at
        return self._has_bookmarks and vain > _VAIN_SILENCES * silence.total_seconds()

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
            self._set(self._state, None, self._loss)

    def failed(self, reason: str, message: str) -> None:
        """An attempt failed; another one follows."""
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
            reason=told[0],
            message=told[1],
            last_heard=self._heard.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if self._heard else "",
            resource_version=self._mark.resource_version if self._mark else "",
            lag_seconds=round(self.lag, 3),
        )

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


def tell_dead(found: Iterable[Progress], silence: timedelta) -> str:
    """Which watches stay silent although the server answers; empty when none does (W11)."""
    dead = [progress.name for progress in found if progress.is_dead(silence)]
    return f"no sign of {', '.join(dead[:5])} over reconnects" if dead else ""
