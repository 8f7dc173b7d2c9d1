"""The phase of rolling updates: faults beside, and the figures of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Protocol

import orjson

from faults.rig.recorder import write_meta
from faults.rig.seeds import Planned
from faults.workers.rollouts import Disturb, kinds_of, rolling, run_updates
from fleetbus_devfleet.processes.children import Child, ChildError
from fleetbus_devfleet.processes.servers import (
    NatsServer,
    ValkeyServer,
    nats_server,
    valkey_server,
)

PHASE: Final = "updates"
_QUIET: Final = 2
"""One of so many updates has a fault beside."""
_AWAY_SECONDS: Final = 1.0


class UpdatesPlan(Planned, Protocol):
    """The part of a plan that this phase needs."""

    @property
    def updates(self) -> int: ...


@dataclass(frozen=True)
class UpdateFigures:
    """The figures of the rolling updates."""

    seed: int
    phase: str
    mutation: str
    seconds: float
    updates: list[str]
    processes: int
    kills: int
    faults: list[str]
    runs: int
    load_average: float
    violations: list[str]

    @property
    def line(self) -> str:
        return (
            f"  {self.phase:7} {self.seconds:4.0f} s  updates {len(self.updates):3}"
            f"  processes {self.processes:3}  kills {self.kills:3}  faults {len(self.faults):3}"
            f"  runs {self.runs:6}  violations {len(self.violations)}"
        )


async def run_phase(plan: UpdatesPlan, folder: Path) -> AsyncGenerator[Path]:
    """Run the updates of a seed; yields the folder when they are recorded."""
    phase = folder / PHASE
    phase.mkdir()
    async with (
        nats_server(store_dir=phase / "nats") as nats,
        valkey_server(dir=phase / "valkey", appendonly=True) as valkey,
        rolling(phase, nats.url, valkey.url, plan.seed, plan.mutation) as running,
    ):
        rollouts, began = running.rollouts, time.time()
        random = Random(f"updates/{plan.seed}")
        faults: list[str] = []
        disturb = _faults(random, nats, valkey, running.projector, faults)
        lost: dict[str, list[str]] = {}
        kinds = kinds_of(random, plan.updates)
        async for kind, missed in run_updates(running, kinds, disturb):
            if missed:
                lost[f"{len(lost)} {kind}"] = missed
                break  # what the next updates would miss follows from it
        stopped = time.time()
        write_meta(
            phase,
            plan,
            began=began,
            stopped=stopped,
            writes=sum(cluster.truth.last for cluster in running.clusters),
            settled=0.0,
            updates=kinds,
            processes=rollouts.starts,
            kills=rollouts.kills,
            faults=faults,
            lost=lost,
        )
    yield phase


def _faults(
    random: Random, nats: NatsServer, valkey: ValkeyServer, projector: Child, log: list[str]
) -> Disturb:
    async def disturb() -> None:
        if random.randrange(_QUIET):
            return
        kind = random.choice(["kill-projector", "kill-nats", "kill-valkey"])
        log.append(kind)
        await asyncio.sleep(random.uniform(0, 2))
        server = {"kill-nats": nats, "kill-valkey": valkey}.get(kind)
        if server is not None:
            server.kill()
            await asyncio.sleep(random.uniform(0, _AWAY_SECONDS))
            await server.restart()
            return
        projector.kill()
        await asyncio.sleep(random.uniform(0, _AWAY_SECONDS))
        with suppress(ChildError):
            projector.respawn()

    return disturb


def check_updates(phase: Path) -> UpdateFigures:
    """The figures and violations of what was recorded."""
    meta = orjson.loads((phase / "meta.json").read_bytes())
    return UpdateFigures(
        seed=meta["seed"],
        phase=meta["phase"],
        mutation=meta["mutation"],
        seconds=meta["seconds"],
        updates=meta["updates"],
        processes=meta["processes"],
        kills=meta["kills"],
        faults=meta["faults"],
        runs=len((phase / "notes").read_bytes().splitlines()),
        load_average=meta["load_average"],
        violations=[
            f"lost-change: after {kind} {len(missed)}, like {'; '.join(missed[:4])}"
            for kind, missed in meta["lost"].items()
        ],
    )
