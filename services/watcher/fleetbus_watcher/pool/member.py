"""One member of the pool: which clusters are its work, and how they change hands (rule W22).

run            read, decide, act, again and again; a member that stops hands its clusters over
_renew         renews the member's record, beside it: a member that does not is replaced
_read          which members are alive, and who holds the leases
_act           for each cluster what `next_step` says

A cluster changes hands like this: the new member works on it beside the old one, from its
checkpoint (W15 makes that harmless), and takes the lease once every watch is open; the old one sees
that and stops. If the old one is dead the new one takes the lease first.
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
from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError
from fleetbus.kube.selectors import LabelSelector
from fleetbus_proto.keys import KV_POOL_LEASES, KV_POOL_MEMBERS
from fleetbus_watcher import metrics
from fleetbus_watcher.errgroup import run_group
from fleetbus_watcher.pool.assignment import Step, assign, next_step
from fleetbus_watcher.pool.cluster_runner import ClusterRunner
from fleetbus_watcher.pool.records import (
    MemberRecord,
    MemberTracker,
    PoolStore,
    State,
    StoredLease,
    decode_member,
)
from fleetbus_watcher.publish.replica_name import ADVICE, renamed
from fleetbus_watcher.settings import PoolSettings

log = structlog.get_logger()

_SHORTEST_TURN: Final = timedelta(milliseconds=50)
"""Many leases change hands together; each wakes us."""
_CLUSTERS_POLL: Final = timedelta(seconds=1)
_UNCLAIMED_FOR: Final = 2
"""A cluster without a holder for so many lease times may be taken by any member: the one to which
it is assigned may not know of it."""
_CALM: Final = 12
"""For so many lease times a cluster is not taken back from a live member that took it from us:
members that see different fleets, because one has lost the hub, would do nothing else."""
_JOINS_AFTER: Final = 2
"""Renewals before the first claim: members that start together see each other first."""


class PoolMember:
    """One member.

    Args:
        name: its name.
        settings: of the pool.
        clusters: the fleet, from the providers.
        bus: the connection of this process.
        create_runner: creates the work for one cluster, reported under our name.
    """

    def __init__(
        self,
        *,
        name: str,
        settings: PoolSettings,
        clusters: Clusters,
        bus: Bus,
        create_runner: Callable[[ClusterInfo, str], ClusterRunner],
    ) -> None:
        self._me = name
        self._settings = settings
        self._interval = settings.interval.total_seconds()
        self._lease = settings.lease.total_seconds()
        self._clusters = clusters
        self._bus = bus
        self._kv = KeyValue(bus)
        self._create_runner = create_runner
        self._selector = LabelSelector.parse(settings.selector)
        self._store = PoolStore(bus, self._kv)
        self._members = MemberTracker(lease=self._lease, interval=self._interval)
        self._leases: dict[str, StoredLease] = {}
        # For how long, in time that we observed, a cluster has had no live holder.
        self._unclaimed: dict[str, float] = {}
        # When a live member took a cluster from us.
        self._lost_at: dict[str, float] = {}
        self._runners: dict[str, ClusterRunner] = {}
        # Runners that are stopping; their clusters cannot be started before.
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._state: State = "active"
        self._boot = secrets.token_hex(8)
        # The last record of another process of our name.
        self._namesake: MemberRecord | None = None
        self._beat = 0
        # Since we joined, or came back from a pause in which others may have replaced us.
        self._renewals = 0
        # Whether the work for our clusters has begun: joined, but for the next turn, is not ready.
        self._has_joined = False
        self._read_at: float | None = None
        # When all leases were read, and when there was last a sign that one was written.
        self._leases_read_at = self._lease_noted_at = float("-inf")
        self._is_reachable = True
        self._woken = asyncio.Event()
        self._assigned_for: tuple[list[str], list[str]] = ([], [])
        self._assigned: dict[str, str] = {}

    # --- queries of probes --------------------------------------------------------------------

    def waiting(self) -> str:
        """Why this member has not joined yet; empty when it has."""
        if not self._clusters.is_known:
            return "the providers have not reported their clusters yet"
        return "" if self._has_joined else "the members of the pool are not known yet"

    def unsettled(self) -> str:
        """Name the clusters whose first sync is not over; empty for none."""
        names = [name for name, runner in self._runners.items() if runner.unsettled()]
        return f"first sync of {', '.join(sorted(names)[:5])}" if names else ""

    @property
    def _may_claim(self) -> bool:
        return self._read_at is not None and self._renewals > _JOINS_AFTER

    # --- for ever -----------------------------------------------------------------------------

    async def run(self, beat: Callable[[], None]) -> None:
        """Take part until cancelled; then hand the clusters over, and stop.

        Args:
            beat: called at each turn, for a liveness check.
        """
        self._clusters.on_change(self._woken.set)
        self._bus.on_reconnect(self._note_lease)
        try:
            await self._wait_for_clusters(beat)
            async with (
                self._kv.follow(KV_POOL_LEASES, self._on_lease),
                self._kv.follow(KV_POOL_MEMBERS, self._on_member),
            ):
                await self._take_part(beat)
        finally:
            await self._close_all()

    async def _take_part(self, beat: Callable[[], None]) -> None:
        try:
            await run_group(renewals=self._renew_for_ever(), turns=self._turn_for_ever(beat))
        except asyncio.CancelledError:
            await self._leave()
            raise

    async def _wait_for_clusters(self, beat: Callable[[], None]) -> None:
        """Wait for the providers: a member that does not know the clusters takes none."""
        while not self._clusters.is_known:
            beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLUSTERS_POLL.total_seconds()):
                    await self._clusters.known()

    async def _renew_for_ever(self) -> NoReturn:
        while True:
            with suppress(BusError):  # logged by the turns
                await self._renew()
            await asyncio.sleep(self._interval)

    async def _renew(self) -> None:
        self._beat += 1
        record = MemberRecord(
            boot=self._boot,
            beat=self._beat,
            state=self._state,
            owned=len(self._owned()),
            selector=self._settings.selector,
        )
        await self._store.renew(self._me, record)
        self._renewals += 1

    async def _turn_for_ever(self, beat: Callable[[], None]) -> NoReturn:
        while True:
            beat()
            await self._turn()
            await self._pause()

    async def _turn(self) -> None:
        try:
            await self._read()
            await self._act()
        except BusError as e:
            # We keep our leases: no member can take them, and each cluster's work waits by itself.
            if self._is_reachable:
                log.warning("pool_unreachable", error=str(e))
            self._is_reachable = False
        else:
            self._is_reachable = True
        metrics.pool_clusters.set(len(self._owned()))

    async def _pause(self) -> None:
        """Wait until something wakes us, a member that we succeed may stop, or it is time."""
        loop = asyncio.get_running_loop()
        shortest = min(_SHORTEST_TURN.total_seconds(), self._interval)
        ends_at = loop.time() + self._interval
        await asyncio.sleep(shortest)
        while (remaining := ends_at - loop.time()) > 0:
            succeeding = self._succeeding()
            if self._woken.is_set() or any(self._may_succeed(*each) for each in succeeding):
                return
            with suppress(TimeoutError):  # nothing wakes us when our work gets under way
                async with asyncio.timeout(shortest if succeeding else remaining):
                    await self._woken.wait()

    def _succeeding(self) -> list[tuple[str, ClusterRunner]]:
        """Return the clusters that we work on beside their holder, to succeed it."""
        return [
            (name, runner)
            for name, runner in self._runners.items()
            if (lease := self._leases.get(name)) is not None and self._is_others(lease)
        ]

    # --- writes of other members --------------------------------------------------------------

    def _on_lease(self, _key: str, value: bytes) -> None:
        del value
        self._note_lease()

    def _note_lease(self) -> None:
        self._lease_noted_at = asyncio.get_running_loop().time()
        self._woken.set()

    def _on_member(self, key: str, value: bytes) -> None:
        """Wake up if a member joins, or wants to leave; not for each renewal."""
        member = key.removeprefix(f"{KV_POOL_MEMBERS}.")
        record, new = self._members.record_of(member), decode_member(value)
        if new is None or member == self._me:
            return
        if record is None or record.state != new.state:
            self._woken.set()

    # --- read ---------------------------------------------------------------------------------

    async def _read(self) -> None:
        self._woken.clear()
        members = await self._store.members()
        before = self._leases
        if self._are_leases_due():
            self._leases_read_at = asyncio.get_running_loop().time()
            self._leases = await self._store.leases()
        now = asyncio.get_running_loop().time()
        passed = 0.0 if self._read_at is None else now - self._read_at
        if passed > self._lease:
            self._renewals = 0  # we were away, and may have been replaced: we join again
        self._read_at = now
        self._members.update(members, now)
        self._count_unclaimed(min(passed, 2 * self._interval))
        self._note_lost(before, now)
        self._give_way(members.get(self._me))
        metrics.pool_members.set(len(self._active()))

    def _are_leases_due(self) -> bool:
        """Whether to read all leases: not at each turn, as there is one for each cluster.

        Every write is announced. It is announced when it is sent, and the bucket has it a moment
        later, so they are read for two turns; and now and then, as an announcement may be lost.
        """
        now = asyncio.get_running_loop().time()
        was_noted = now - self._lease_noted_at <= 2 * self._interval
        return was_noted or now - self._leases_read_at >= self._lease

    def _count_unclaimed(self, passed: float) -> None:
        before = self._unclaimed
        self._unclaimed = {
            name: before[name] + passed if name in before else 0.0
            for name in self._pool_clusters()
            if (lease := self._leases.get(name)) is None or not self._is_held(lease)
        }

    def _note_lost(self, before: dict[str, StoredLease], now: float) -> None:
        for name, lease in self._leases.items():
            was_ours = name in before and before[name].member == self._me
            if was_ours and self._is_others(lease):
                metrics.moved("given_away")
                if self._may_claim:  # else it was taken while we were away
                    self._lost_at[name] = now
        self._lost_at = {name: at for name, at in self._lost_at.items() if name in self._leases}

    def _give_way(self, stored: tuple[MemberRecord, int] | None) -> None:
        """Join again under another name if a process with a lower id uses ours (rule W25).

        The leases that name us are its leases, too, and stay with it. One record proves nothing: it
        may come from a process that died while it was on its way.
        """
        if stored is None or stored[0].boot == self._boot or not self._may_claim:
            return
        before, self._namesake = self._namesake, stored[0]
        is_alive = before is not None and before.boot == stored[0].boot and before != stored[0]
        if not is_alive or self._boot < stored[0].boot:
            return
        shared, self._me = self._me, renamed(self._me, self._boot)
        self._namesake, self._renewals = None, 0
        log.error(
            "member_name_shared",
            member=self._me,
            error=f"another member of the pool is named {shared!r} as well: {ADVICE}",
        )

    def _pool_clusters(self) -> dict[str, ClusterInfo]:
        """Return the clusters that the pool takes; those with agents are watched from inside."""
        return {
            info.name: info
            for info in self._clusters.all()
            if info.access is ClusterAccess.DIRECT and self._selector.matches(info.labels)
        }

    def _active(self) -> list[str]:
        """Return the members that take clusters; us too, although our renewal may be in flight."""
        others = [m for m in self._members.active(self._settings.selector) if m != self._me]
        return sorted([*others, self._me]) if self._state == "active" else others

    def _is_held(self, lease: StoredLease) -> bool:
        return lease.member == self._me or self._members.is_alive(lease.member)

    def _is_others(self, lease: StoredLease) -> bool:
        return lease.member != self._me and self._members.is_alive(lease.member)

    def _owned(self) -> list[str]:
        return [name for name, lease in self._leases.items() if lease.member == self._me]

    # --- act ----------------------------------------------------------------------------------

    async def _act(self) -> None:
        clusters = self._pool_clusters()
        assigned = self._assign(sorted(clusters), self._active())
        claims = [n for n in clusters if self._do(clusters[n], self._step(n, assigned))]
        self._has_joined = self._may_claim
        await run_group(**{name: self._claim(name) for name in claims})
        await self._drop_gone(clusters)

    def _do(self, info: ClusterInfo, step: Step) -> bool:
        """Start or stop the work for a cluster; returns whether to take its lease now."""
        if step is Step.CLAIM and not self._may_claim:
            return False
        if step is Step.NONE or (step is Step.SUCCEED and not self._may_compete(info.name)):
            self._stop(info.name)
            return False
        self._start(info)
        runner = self._runners.get(info.name)
        if step is Step.SUCCEED:
            return runner is not None and self._may_succeed(info.name, runner)
        return step is Step.CLAIM

    def _may_compete(self, name: str) -> bool:
        """Whether to work beside a live member, to succeed it."""
        lost_at = self._lost_at.get(name, float("-inf"))
        is_calm = asyncio.get_running_loop().time() - lost_at >= _CALM * self._lease
        return self._may_claim and (is_calm or self._is_leaving(name))

    def _may_succeed(self, name: str, runner: ClusterRunner) -> bool:
        """Whether the holder may stop: our work is under way, or the holder leaves anyhow."""
        return runner.is_under_way or (self._is_leaving(name) and not runner.unsettled())

    def _is_leaving(self, name: str) -> bool:
        record = self._members.record_of(self._leases[name].member)
        return record is not None and record.state == "leaving"

    def _assign(self, clusters: list[str], members: list[str]) -> dict[str, str]:
        if (clusters, members) != self._assigned_for:
            self._assigned_for = (clusters, members)
            self._assigned = assign(clusters, members)
        return self._assigned

    def _step(self, name: str, assigned: dict[str, str]) -> Step:
        lease = self._leases.get(name)
        is_unclaimed = self._unclaimed.get(name, 0.0) >= _UNCLAIMED_FOR * self._lease
        may_take_any = is_unclaimed and self._state == "active"
        return next_step(
            self._me,
            holder=lease.member if lease is not None else None,
            is_held=lease is not None and self._is_held(lease),
            assigned=None if may_take_any else assigned.get(name, ""),
            is_running=name in self._runners,
        )

    async def _claim(self, name: str) -> None:
        before = self._leases.get(name)
        taken = await self._store.take(name, self._me, before)
        if taken is None:
            self._note_lease()  # another member was first: read again
            return
        self._leases[name] = taken
        self._unclaimed.pop(name, None)
        how = "claimed"
        if before is not None:
            how = "taken_over" if self._is_others(before) else "replaced"
        metrics.moved(how)
        log.info("cluster_taken", cluster=name, how=how, of=before.member if before else "")

    async def _drop_gone(self, clusters: dict[str, ClusterInfo]) -> None:
        """Stop the work for what is not a cluster of the pool any more."""
        for name in self._runners.keys() - clusters.keys():
            is_in_fleet = self._clusters.get(name) is not None
            self._stop(name, final_heartbeat=is_in_fleet)
        for name, lease in list(self._leases.items()):
            is_garbage = self._clusters.get(name) is None and not self._is_held(lease)
            if is_garbage or (lease.member == self._me and name not in clusters):
                await self._store.drop(name)
                del self._leases[name]

    # --- runners ------------------------------------------------------------------------------

    def _start(self, info: ClusterInfo) -> None:
        runner = self._runners.get(info.name)
        if runner is not None and not _is_same(runner.info, info):
            self._stop(info.name, unusable=info.problem)  # and started again once that is done
        if info.name in self._runners or info.name in self._closing:
            return
        self._runners[info.name] = runner = self._create_runner(info, self._me)
        runner.start()

    def _stop(self, name: str, *, final_heartbeat: bool = True, unusable: str = "") -> None:
        runner = self._runners.pop(name, None)
        if runner is None:
            return
        closing = runner.aclose(final_heartbeat=final_heartbeat, unusable=unusable)
        self._closing[name] = task = asyncio.create_task(closing, name=f"close-{name}")
        task.add_done_callback(lambda _: self._closed(name))

    def _closed(self, name: str) -> None:
        self._closing.pop(name, None)
        self._woken.set()

    # --- leave --------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Hand everything over, as long as there is a member to take it."""
        self._state = "leaving"
        log.info("pool_leaving", member=self._me, clusters=len(self._owned()))
        with suppress(TimeoutError, BusError):
            async with asyncio.timeout(self._settings.hand_over.total_seconds()):
                await self._hand_over()
        self._state = "left"
        if self._is_bus_usable():
            with suppress(BusError):
                await self._renew()
        log.info("pool_left", member=self._me, kept=len(self._owned()))

    async def _hand_over(self) -> None:
        while self._is_bus_usable():
            await self._renew()
            await self._read()
            await self._act()
            if not self._owned() or not self._active():
                return
            await self._pause()

    def _is_bus_usable(self) -> bool:
        return self._bus.is_connected and not self._bus.has_failed

    async def _close_all(self) -> None:
        for name in list(self._runners):
            self._stop(name)
        await asyncio.gather(*self._closing.values())


def _is_same(before: ClusterInfo, now: ClusterInfo) -> bool:
    """Whether both are reached in the same way: labels make no difference to the work.

    What to watch, and whether to, comes from the watch spec, for all watchers alike.
    """
    return (before.config, before.problem, before.hub) == (now.config, now.problem, now.hub)
