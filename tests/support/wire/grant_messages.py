"""Asks for epochs and answers to them, written as the other side of a grant would (rule W7)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import msgspec

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.watchers.grant_requests import (
    GrantAnswer,
    GrantRequest,
    GrantRequests,
    change_grant_requests,
    notify_granted,
    read_grant_requests,
)
from fleetbus_proto.keys import kv_grant

_clock = itertools.count(1_000)


@dataclass(frozen=True)
class Asker:
    """One replica that wants to list one scope of one resource."""

    kv: KeyValue
    cluster: str = "eu1"
    resource: str = "pods"
    replica: str = "r1"
    scope: str = ""
    group: str = "core"

    @property
    def key(self) -> str:
        return kv_grant(self.cluster, self.group, self.resource)

    async def ask(self, size: int = 0, *, patience: float = 60.0, epoch: int = 0) -> GrantRequest:
        """Ask anew; each ask of the test is later than those before it."""
        request = GrantRequest(
            replica=self.replica,
            scope=self.scope,
            since=next(_clock),
            patience=patience,
            bytes=size,
            epoch=epoch,
        )
        await change_grant_requests(self.kv, self.key, lambda asks: (*self._others(asks), request))
        return request

    async def begin(self, epoch: int) -> None:
        await self._amend(epoch=epoch)

    async def leave(self) -> None:
        await change_grant_requests(self.kv, self.key, self._others)

    async def found(self) -> GrantRequest | None:
        """Return how the ask stands; None if there is none."""
        asks = (await read_grant_requests(self.kv, self.key)).requests
        return next((ask for ask in asks if self._is_mine(ask)), None)

    async def is_there(self) -> bool:
        return await self.found() is not None

    async def is_begun(self) -> bool:
        ask = await self.found()
        return ask is not None and ask.epoch > 0

    async def is_received(self) -> bool:
        ask = await self.found()
        return ask is not None and ask.answer is not None

    async def is_granted(self) -> bool:
        ask = await self.found()
        return ask is not None and ask.is_granted

    async def is_gone(self) -> bool:
        return await self.found() is None

    async def room(self) -> int:
        ask = await self.found()
        return ask.answer.bytes if ask is not None and ask.answer is not None else -1

    # --- the projector's part, where a test plays that ----------------------------------------

    async def grant(self, bus: Bus | None, room: int = 0) -> None:
        """Say yes, and wake the watcher if there is a bus for it."""
        await self._amend(answer=GrantAnswer(received=1, at=1, granted=True, bytes=room))
        if bus is not None:
            await notify_granted(bus, self.cluster)

    async def give_sign(self, bus: Bus, at: int) -> None:
        await self._amend(answer=GrantAnswer(received=1, at=at))
        await notify_granted(bus, self.cluster)

    async def _amend(self, **fields: Any) -> None:
        def change(asks: GrantRequests) -> GrantRequests:
            changed = [msgspec.structs.replace(a, **fields) for a in asks if self._is_mine(a)]
            return (*self._others(asks), *changed)

        await change_grant_requests(self.kv, self.key, change)

    def _others(self, asks: GrantRequests) -> GrantRequests:
        return tuple(ask for ask in asks if not self._is_mine(ask))

    def _is_mine(self, ask: GrantRequest) -> bool:
        return (ask.replica, ask.scope) == (self.replica, self.scope)
