"""Breaks the emulated clusters of a rehearsal at the right moment.

A cluster that dies in its own wave dies with the first write of the distributor to it: that is
armed before, because who only sees the wave open comes too late.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from fleetbus_devfleet.rehearsal.faults import Fault, FaultKind
from fleetbus_emulator.apiserver import Abort, Delay, Fail, Partition
from fleetbus_emulator.loading import run_controllers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus_emulator.apiserver.admin import AdminClient

DISTRIBUTOR: Final = "fleetbus-distributor"
"""A part of its User-Agent."""
_SLOW: Final = timedelta(seconds=2)
_FORBIDDEN: Final = 403


class Injection:
    """The faults of one rehearsal.

    Args:
        admin: of the emulated clusters.
        faults: in their order.

    Attributes:
        fired: the faults that have happened, with the seconds since the edit.
    """

    def __init__(self, admin: AdminClient, faults: Sequence[Fault]) -> None:
        self._admin = admin
        self._waiting = list(faults)
        self._armed: dict[tuple[str, int], Fault] = {}
        self.fired: list[tuple[Fault, float]] = []

    @property
    def is_timed(self) -> bool:
        """Whether a fault still waits for its time, rather than for a wave."""
        return any(fault.after is not None for fault in self._waiting)

    @property
    def left(self) -> list[Fault]:
        """The faults that have not happened."""
        return [*self._waiting, *self._armed.values()]

    @property
    def broken(self) -> set[str]:
        """The clusters that a fault has broken."""
        return {fault.cluster for fault, _ in self.fired if fault.kind is not FaultKind.RETURNS}

    async def begin(self, first: str) -> list[Fault]:
        """Inject what is broken from the start.

        Args:
            first: the name of the first wave: it opens with the edit, so its faults are armed now.
        """
        for fault in self._waiting:
            if fault.kind is FaultKind.DIES and fault.wave in ("1", first):
                await self._arm(fault)
        self._waiting = [fault for fault in self._waiting if fault not in self._armed.values()]
        now = [fault for fault in self._waiting if not fault.wave and fault.after is None]
        return await self._fire(now, 0.0)

    async def follow(
        self, waves: Sequence[tuple[str, Sequence[str], bool]], at: float
    ) -> list[Fault]:
        """Inject what is due, and return it.

        Args:
            waves: of each wave its name, its clusters, and whether it is or was open.
            at: seconds since the edit.
        """
        due = [
            fault for fault in self._waiting if fault.after and fault.after.total_seconds() <= at
        ]
        for number, (name, clusters, is_open) in enumerate(waves, start=1):
            for fault in self._waiting:
                if fault.wave not in (name, str(number)):
                    continue
                if is_open or (fault.cluster in clusters and fault.kind is not FaultKind.DIES):
                    due.append(fault)
                elif fault.cluster in clusters:
                    await self._arm(fault)
            due += self._elsewhere(number, name, clusters) if is_open else []
        self._waiting = [fault for fault in self._waiting if fault not in self._armed.values()]
        due += await self._triggered()
        return await self._fire(due, at)

    async def _arm(self, fault: Fault) -> None:
        """Break the first write of the distributor to a cluster."""
        rule = await self._admin.add_fault(
            fault.cluster, Abort(), verb="write", user_agent=DISTRIBUTOR
        )
        self._armed[fault.cluster, rule.id] = fault

    def _elsewhere(self, number: int, name: str, clusters: Sequence[str]) -> list[Fault]:
        """The armed faults of an open wave that their cluster is not in: nothing triggers them."""
        armed = [
            (key, fault)
            for key, fault in self._armed.items()
            if fault.wave in (name, str(number)) and fault.cluster not in clusters
        ]
        return [self._armed.pop(key) for key, _ in armed]

    async def _triggered(self) -> list[Fault]:
        faults: list[Fault] = []
        for key in list(self._armed):
            rules = await self._admin.faults(key[0])
            if any(rule.id == key[1] and rule.hits for rule in rules):
                faults.append(self._armed.pop(key))
        return faults

    async def _fire(self, faults: Sequence[Fault], at: float) -> list[Fault]:
        for fault in faults:
            await self._inject(fault)
            self.fired.append((fault, at))
            if fault in self._waiting:
                self._waiting.remove(fault)
        return list(faults)

    async def _inject(self, fault: Fault) -> None:
        admin, cluster = self._admin, fault.cluster
        if fault.kind is FaultKind.DIES:
            await admin.partition(cluster, Partition.REFUSE)
        elif fault.kind is FaultKind.RETURNS:
            await admin.clear_faults(cluster)
            await admin.heal(cluster)
            await run_controllers(admin, cluster, running=True)
        elif fault.kind is FaultKind.SLOW:
            await admin.add_fault(cluster, Delay(_SLOW))
        elif fault.kind is FaultKind.UNHEALTHY:
            await run_controllers(admin, cluster, running=False)
        else:
            refusal = Fail(_FORBIDDEN, message="refused by the fault of this rehearsal")
            await admin.add_fault(cluster, refusal, verb="write", resource=fault.resource)
