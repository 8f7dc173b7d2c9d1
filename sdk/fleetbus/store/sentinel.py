"""A client of the master that Redis Sentinels name, which follows a failover.

Each new connection asks the Sentinels where the master is. Beside that they are asked every few
seconds, and connections to any other server are ended: a server that hangs, or whose machine is
gone or cut off, ends none by itself, and what waits for its answers would wait until it is given
up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast
from weakref import WeakSet

import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from fleetbus.process.access.store import StoreAccess
from fleetbus.store.address import Place, SentinelAddress
from fleetbus.store.login import authentication_of, reading_tls, sentinel_authentication
from fleetbus.store.multiplexing import MultiplexingRedis

_ASK_EVERY: Final = timedelta(seconds=3)
"""Between two questions to the Sentinels, each with one short answer."""
_ANSWER_WITHIN: Final = timedelta(seconds=3)
"""Time that a Sentinel has to answer: it may be on the machine that the master was on."""

_Answer = dict[str, dict[str, Any]] | errors.RedisError
"""The masters that a Sentinel knows by their names, or why it did not answer."""


class _Named(NamedTuple):
    """The master by one Sentinel; the larger of two is the one to believe."""

    failovers: int
    """The configuration epoch, which each failover raises."""
    is_up: bool
    place: Place


class _Sentinels(Sentinel):
    """Asks all Sentinels at once, and believes the latest failover of which a majority knows.

    One of them may be on the side of a master that is cut off, and not know of the next one.
    """

    def __init__(self, sentinels: tuple[Place, ...], options: dict[str, Any]) -> None:
        super().__init__(sentinels, sentinel_kwargs=options)
        self._places = sentinels
        self._asking: dict[int, asyncio.Task[_Answer]] = {}

    async def discover_master(self, service_name: str) -> Place:
        """Find the master.

        Raises:
            MasterNotFoundError: no Sentinel knows it; why, for each of them.
            redis.exceptions.ResponseError: none answers, and one refuses.
        """
        answers = await self._ask()
        known = [masters for masters in answers.values() if isinstance(masters, dict)]
        if master := latest_master(known, service_name):
            return master
        problems = {at: answer for at, answer in answers.items() if not isinstance(answer, dict)}
        if len(problems) == len(answers):
            for problem in problems.values():
                if isinstance(problem, errors.ResponseError):
                    raise problem
        reasons = {self._places[at]: why for at, why in problems.items()}
        raise MasterNotFoundError(why_no_master(service_name, reasons))

    async def _ask(self) -> dict[int, _Answer]:
        """The answers of a majority, or of all, if fewer of them know anything."""
        for at in range(len(self._places)):
            if at not in self._asking:
                self._asking[at] = asyncio.create_task(self._ask_one(at), name="redis sentinel")
        waiting = dict(self._asking)
        answers: dict[int, _Answer] = {}
        while (
            waiting and sum(isinstance(a, dict) for a in answers.values()) <= len(self._places) // 2
        ):
            await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            for at in [at for at, task in waiting.items() if task.done()]:
                answers[at] = waiting.pop(at).result()
        return answers

    async def _ask_one(self, at: int) -> _Answer:
        try:
            return await cast("Any", self.sentinels[at].sentinel_masters())
        except errors.RedisError as e:
            return e
        finally:
            del self._asking[at]

    async def aclose(self) -> None:
        """Close the connections to the Sentinels."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().aclose()


def latest_master(answers: Iterable[dict[str, dict[str, Any]]], name: str) -> Place | None:
    """The master by the latest failover of which one of some Sentinels knows; None if it is down.

    Args:
        answers: of each Sentinel, the masters that it knows by their names.
        name: of the master.
    """
    named = [_read(masters[name]) for masters in answers if name in masters]
    return latest.place if named and (latest := max(named)).is_up else None


def why_no_master(name: str, problems: Mapping[Place, Exception]) -> str:
    """The message for a master that nobody knows, with the problem of each Sentinel."""
    reasons = [f"{_text(place)} - {problem!r}" for place, problem in problems.items()]
    text = f": {', '.join(reasons)}" if reasons else ""
    return f"No master found for {name!r}{text}"


def _read(state: dict[str, Any]) -> _Named:
    is_up = state["is_master"] and not state["is_sdown"] and not state["is_odown"]
    return _Named(int(state["config-epoch"]), is_up, (state["ip"], int(state["port"])))


def _text(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


class MasterPool(SentinelConnectionPool):
    """Makes connections to the master, and closes those to the Sentinels with itself.

    Args:
        address: the Sentinels, and the name of the master.
        access: what to log in with.
        pack: makes a class of connections that packs commands quickly.
        options: of all connections.
    """

    def __init__(
        self, address: SentinelAddress, access: StoreAccess, pack: Any, options: dict[str, Any]
    ) -> None:
        plain = SentinelManagedSSLConnection if address.is_tls else SentinelManagedConnection
        of_sentinels = options | sentinel_authentication(access, address.sentinel_credentials)
        seconds = _ANSWER_WITHIN.total_seconds()
        of_sentinels |= {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        if address.is_tls:
            of_sentinels["ssl"] = True
        self._made: WeakSet[AbstractConnection] = WeakSet()
        super().__init__(
            address.master,
            _Sentinels(address.sentinels, of_sentinels),
            connection_class=pack(reading_tls(plain, access.tls)),
            db=address.database,
            **options,
            **authentication_of(access, address.credentials),
        )
        for sentinel in cast("list[Redis]", self.sentinel_manager.sentinels):
            pool = sentinel.connection_pool
            pool.connection_class = reading_tls(pool.connection_class, access.tls)

    def make_connection(self) -> AbstractConnection:
        """See `ConnectionPool.make_connection`."""
        connection = super().make_connection()
        self._made.add(connection)
        return connection

    async def leave_others(self, master: Place) -> None:
        """End connections to servers that are not the master, also those that are being made."""
        for connection in tuple(self._made):
            its = cast("Any", connection)
            if connection.is_connected and (its.host, its.port) != master:
                await connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Close all connections."""
        await cast("_Sentinels", self.sentinel_manager).aclose()
        await super().aclose()


class SentinelRedis(MultiplexingRedis):
    """A client of the master; it leaves a server when the Sentinels name another one."""

    _following: asyncio.Task[None] | None = None

    def follow_failovers(self) -> None:
        """Ask the Sentinels every few seconds, from now on."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="redis master")

    async def _follow(self) -> None:
        pool = cast("MasterPool", self.connection_pool)
        while True:
            await asyncio.sleep(_ASK_EVERY.total_seconds())
            try:
                master = cast("Place", await pool.get_master_address())
            except errors.RedisError:
                continue  # the master may be well without them; whoever connects says what is wrong
            self.leave_others(master)
            await pool.leave_others(master)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close, after waiting a moment for outstanding answers."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await super().aclose(close_connection_pool)
