"""One member of the pool: which clusters are its work, and how they change hands (rule W22).

run            look, decide, act, again and again; when it is stopped it gives its clusters away
_beat          signs of life, beside it: whoever gives none is replaced
_look          who lives, and whose the leases are
_act           for each cluster what `next_step` says

A cluster changes hands like this: the new member works on it beside the old one, from its
checkpoint (W15 makes that harmless), and takes the lease once every watch is open; the old one
sees that, and stops. If the old one is dead the new one takes the lease first.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final, NoReturn

import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError
from fleetbus.kube.selectors import LabelSelector
from fleetbus_proto.keys import KV_POOL_LEASES, KV_POOL_MEMBERS
from fleetbus_watcher import pool_metrics
from fleetbus_watcher.errgroup import race
from fleetbus_watcher.pool.assignment import Step, next_step, share
from fleetbus_watcher.pool.cluster_runner import Scope
from fleetbus_watcher.pool.records import Held, Peers, Records, Sign, State, read_sign
from fleetbus_watcher.pool_settings import PoolSettings

log = structlog.get_logger()

_SHORTEST_TURN: Final = timedelta(milliseconds=50)
"""Many leases change hands together; each wakes us."""
_LOOK_FOR_CLUSTERS: Final = timedelta(seconds=1)
_UNCLAIMED_FOR: Final = 2
"""A cluster that nobody has claimed for so many lease times is anybody's: whom it belongs to may
not know of it."""
_CALM: Final = 12
"""For so many lease times a cluster is not taken back from a member that has taken it from us:
members that see different fleets, because one has lost the hub, would do nothing else."""
_JOINS_AFTER: Final = 2
"""Signs of life before the first claim: members that start together see each other first."""


class Pool:
    """One member.

    Args:
        member: its name.
        settings: of the pool.
        clusters: the fleet, as the providers tell it.
        bus: the connection of this process.
        open_scope: makes the work for one cluster.
    """

    def __init__(
        self,
        *,
        member: str,
        settings: PoolSettings,
        clusters: Clusters,
        bus: Bus,
        open_scope: Callable[[ClusterInfo], Scope],
    ) -> None:
        self._me = member
        self._settings = settings
        self._interval = settings.interval.total_seconds()
        self._lease = settings.lease.total_seconds()
        self._clusters = clusters
        self._bus = bus
        self._kv = KeyValue(bus)
        self._open_scope = open_scope
        self._selector = LabelSelector.parse(settings.selector)
        self._records = Records(bus, self._kv)
        self._peers = Peers(lease=self._lease, interval=self._interval)
        self._leases: dict[str, Held] = {}
        # Since when, in time that we have seen pass, a cluster has no living holder.
        self._unclaimed: dict[str, float] = {}
        # When a member that lives has taken a cluster from us.
        self._lost_at: dict[str, float] = {}
        self._scopes: dict[str, Scope] = {}
        # Scopes that end; their clusters cannot be started before.
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._state: State = "active"
        self._boot = secrets.token_hex(8)
        # Another process of our name; it was told.
        self._twin = ""
        self._beats = 0
        # Since we joined, or came back from a pause in which others may have replaced us.
        self._signs = 0
        self._looked_at: float | None = None
        self._is_reachable = True
        self._woken = asyncio.Event()
        self._shared_for: tuple[list[str], list[str]] = ([], [])
        self._owners: dict[str, str] = {}

    # --- what probes ask ----------------------------------------------------------------------

    def waiting(self) -> str:
        """Why this member has not joined yet; empty when it has."""
        if not self._clusters.is_known:
            return "the providers have not told their clusters yet"
        return "" if self._may_claim else "the pool is not known yet"

    def unsettled(self) -> str:
        """Of which clusters the first sync is not over."""
        names = [name for name, scope in self._scopes.items() if scope.unsettled()]
        return f"first sync of {', '.join(sorted(names)[:5])}" if names else ""

    @property
    def _may_claim(self) -> bool:
        return self._looked_at is not None and self._signs > _JOINS_AFTER

    # --- for ever -----------------------------------------------------------------------------

    async def run(self, beat: Callable[[], None]) -> None:
        """Take part until cancelled; then give the clusters away, and stop.

        Args:
            beat: called at each turn, for a liveness check.
        """
        self._clusters.on_change(self._woken.set)
        self._bus.on_reconnect(self._woken.set)
        try:
            await self._wait_for_clusters(beat)
            async with (
                self._kv.follow(KV_POOL_LEASES, self._hear_lease),
                self._kv.follow(KV_POOL_MEMBERS, self._hear_sign),
            ):
                try:
                    await race(signs=self._beat_for_ever(), turns=self._turn_for_ever(beat))
                except asyncio.CancelledError:
                    await self._leave()
                    raise
        finally:
            await self._close_all()

    async def _wait_for_clusters(self, beat: Callable[[], None]) -> None:
        """Whoever does not know the clusters takes no share of them."""
        while not self._clusters.is_known:
            beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_FOR_CLUSTERS.total_seconds()):
                    await self._clusters.known()

    async def _beat_for_ever(self) -> NoReturn:
        while True:
            with suppress(BusError):  # the looks tell of it
                await self._beat()
            await asyncio.sleep(self._interval)

    async def _beat(self) -> None:
        self._beats += 1
        await self._records.sign(
            self._me,
            Sign(
                boot=self._boot,
                beat=self._beats,
                state=self._state,
                owned=len(self._owned()),
                selector=self._settings.selector,
            ),
        )
        self._signs += 1

    async def _turn_for_ever(self, beat: Callable[[], None]) -> NoReturn:
        while True:
            beat()
            await self._turn()
            await self._pause()

    async def _turn(self) -> None:
        try:
            await self._look()
            await self._act()
        except BusError as e:
            # What we own we keep: nobody can take it, and each cluster's work waits by itself.
            if self._is_reachable:
                log.warning("pool_unreachable", error=str(e))
            self._is_reachable = False
        else:
            self._is_reachable = True
        pool_metrics.clusters.set(len(self._owned()))

    async def _pause(self) -> None:
        """Until somebody wakes us, or whom we succeed may stop, or it is time."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._interval
        is_over = False
        while not is_over:
            await asyncio.sleep(min(_SHORTEST_TURN.total_seconds(), self._interval))
            is_over = self._woken.is_set() or self._has_succeeded() or loop.time() >= ends_at

    def _has_succeeded(self) -> bool:
        return any(
            self._may_succeed(name, scope)
            for name, scope in self._scopes.items()
            if (held := self._leases.get(name)) is not None and self._is_others(held)
        )

    # --- what is heard ------------------------------------------------------------------------

    def _hear_lease(self, _key: str, value: bytes) -> None:
        del value
        self._woken.set()

    def _hear_sign(self, key: str, value: bytes) -> None:
        """Only what is new is worth a turn: somebody joins, or wants to leave."""
        member = key.removeprefix(f"{KV_POOL_MEMBERS}.")
        known, told = self._peers.sign_of(member), read_sign(value)
        if told is None or member == self._me:
            return
        if known is None or known.state != told.state:
            self._woken.set()

    # --- look ---------------------------------------------------------------------------------

    async def _look(self) -> None:
        self._woken.clear()
        signs = await self._records.signs()
        before, self._leases = self._leases, await self._records.leases()
        now = asyncio.get_running_loop().time()
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        if passed > self._lease:
            self._signs = 0  # we were away, and may have been replaced: we join again
        self._looked_at = now
        self._peers.look(signs, now)
        self._count_unclaimed(min(passed, 2 * self._interval))
        self._note_lost(before, now)
        self._warn_of_twin(signs.get(self._me))
        pool_metrics.members.set(len(self._active()))

    def _count_unclaimed(self, passed: float) -> None:
        before = self._unclaimed
        self._unclaimed = {
            name: before[name] + passed if name in before else 0.0
            for name in self._wanted()
            if (held := self._leases.get(name)) is None or not self._is_held(held)
        }

    def _note_lost(self, before: dict[str, Held], now: float) -> None:
        for name, held in self._leases.items():
            was_ours = name in before and before[name].member == self._me
            if was_ours and self._is_others(held):
                pool_metrics.moved("given_away")
                if self._may_claim:  # else it was taken while we were away
                    self._lost_at[name] = now
        self._lost_at = {name: at for name, at in self._lost_at.items() if name in self._leases}

    def _warn_of_twin(self, mine: tuple[Sign, int] | None) -> None:
        if mine is None or mine[0].boot in (self._boot, self._twin) or not self._may_claim:
            return
        self._twin = mine[0].boot
        log.error("another_member_has_this_name", member=self._me)

    def _wanted(self) -> dict[str, ClusterInfo]:
        """The clusters of the pool."""
        return {
            info.name: info for info in self._clusters.all() if self._selector.matches(info.labels)
        }

    def _active(self) -> list[str]:
        """Who takes clusters; we too, although our own sign may be under way."""
        others = [m for m in self._peers.active(self._settings.selector) if m != self._me]
        return sorted([*others, self._me]) if self._state == "active" else others

    def _is_held(self, held: Held) -> bool:
        return held.member == self._me or self._peers.lives(held.member)

    def _is_others(self, held: Held) -> bool:
        return held.member != self._me and self._peers.lives(held.member)

    def _owned(self) -> list[str]:
        return [name for name, held in self._leases.items() if held.member == self._me]

    # --- act ----------------------------------------------------------------------------------

    async def _act(self) -> None:
        wanted = self._wanted()
        owners = self._share(sorted(wanted), self._active())
        claims = [name for name in wanted if self._do(wanted[name], self._step(name, owners))]
        await race(**{name: self._claim(name) for name in claims})
        await self._leave_gone(wanted)

    def _do(self, info: ClusterInfo, step: Step) -> bool:
        """Start or stop the work for a cluster; answers whether to take its lease now."""
        if step is Step.CLAIM and not self._may_claim:
            return False
        if step is Step.REST or (step is Step.SUCCEED and not self._may_compete(info.name)):
            self._stop(info.name)
            return False
        self._start(info)
        scope = self._scopes.get(info.name)
        if step is Step.SUCCEED:
            return scope is not None and self._may_succeed(info.name, scope)
        return step is Step.CLAIM

    def _may_compete(self, name: str) -> bool:
        """Whether to work beside a member that lives, to succeed it."""
        lost_at = self._lost_at.get(name, float("-inf"))
        is_calm = asyncio.get_running_loop().time() - lost_at >= _CALM * self._lease
        return self._may_claim and (is_calm or self._is_leaving(name))

    def _may_succeed(self, name: str, scope: Scope) -> bool:
        """Whether the present holder may stop: our work is under way, or his ends anyhow."""
        return scope.is_under_way or (self._is_leaving(name) and not scope.unsettled())

    def _is_leaving(self, name: str) -> bool:
        sign = self._peers.sign_of(self._leases[name].member)
        return sign is not None and sign.state == "leaving"

    def _share(self, clusters: list[str], members: list[str]) -> dict[str, str]:
        if (clusters, members) != self._shared_for:
            self._shared_for = (clusters, members)
            self._owners = share(clusters, members)
        return self._owners

    def _step(self, name: str, owners: dict[str, str]) -> Step:
        held = self._leases.get(name)
        is_anybodys = self._unclaimed.get(name, 0.0) >= _UNCLAIMED_FOR * self._lease
        is_ours_to_take = is_anybodys and self._state == "active"
        return next_step(
            self._me,
            holder=held.member if held is not None else None,
            is_held=held is not None and self._is_held(held),
            owner=None if is_ours_to_take else owners.get(name, ""),
            is_running=name in self._scopes,
        )

    async def _claim(self, name: str) -> None:
        before = self._leases.get(name)
        taken = await self._records.take(name, self._me, before)
        if taken is None:
            self._woken.set()  # somebody was faster: look again
            return
        self._leases[name] = taken
        self._unclaimed.pop(name, None)
        how = "claimed"
        if before is not None:
            how = "taken_over" if self._is_others(before) else "replaced"
        pool_metrics.moved(how)
        log.info("cluster_taken", cluster=name, how=how, of=before.member if before else "")

    async def _leave_gone(self, wanted: dict[str, ClusterInfo]) -> None:
        """Stop what is no cluster of the pool any more."""
        for name in self._scopes.keys() - wanted.keys():
            is_in_fleet = self._clusters.get(name) is not None
            self._stop(name, says_goodbye=is_in_fleet)
        for name, held in list(self._leases.items()):
            is_garbage = self._clusters.get(name) is None and not self._is_held(held)
            if is_garbage or (held.member == self._me and name not in wanted):
                await self._records.drop(name)
                del self._leases[name]

    # --- scopes -------------------------------------------------------------------------------

    def _start(self, info: ClusterInfo) -> None:
        scope = self._scopes.get(info.name)
        if scope is not None and not _is_same(scope.info, info):
            self._stop(info.name, unusable=info.problem)  # and started again once that is done
        if info.name in self._scopes or info.name in self._closing:
            return
        self._scopes[info.name] = scope = self._open_scope(info)
        scope.start()

    def _stop(self, name: str, *, says_goodbye: bool = True, unusable: str = "") -> None:
        scope = self._scopes.pop(name, None)
        if scope is None:
            return
        self._closing[name] = task = asyncio.create_task(
            scope.aclose(says_goodbye=says_goodbye, unusable=unusable), name=f"close-{name}"
        )
        task.add_done_callback(lambda _: self._closed(name))

    def _closed(self, name: str) -> None:
        self._closing.pop(name, None)
        self._woken.set()

    # --- leave --------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Give everything away, as long as there is somebody to take it."""
        self._state = "leaving"
        log.info("pool_leaving", member=self._me, clusters=len(self._owned()))
        with suppress(TimeoutError, BusError):
            async with asyncio.timeout(self._settings.hand_over.total_seconds()):
                while self._bus.is_connected and not self._bus.has_failed:
                    await self._beat()
                    await self._look()
                    await self._act()
                    if not self._owned() or not self._active():
                        break
                    await self._pause()
        self._state = "left"
        if self._bus.is_connected and not self._bus.has_failed:
            with suppress(BusError):
                await self._beat()
        log.info("pool_left", member=self._me, kept=len(self._owned()))

    async def _close_all(self) -> None:
        for name in list(self._scopes):
            self._stop(name)
        await asyncio.gather(*self._closing.values())


def _is_same(one: ClusterInfo, other: ClusterInfo) -> bool:
    """Whether both are reached alike: labels make no difference to the work (T8).

    What to watch, and whether to, the projector tells all watchers alike.
    """
    return (one.config, one.problem, one.hub) == (other.config, other.problem, other.hub)
