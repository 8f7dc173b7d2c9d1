"""A distributor that also measures how long its event loop is blocked.

python tests/run.py bench.programs.distributor_process FILE

With SIGUSR2, FILE gets the longest time for which the loop did not turn, in milliseconds, and how
often that was more than 50; and the same in CPU time of its thread, which other processes do not
prolong. SIGUSR1 begins anew. With BENCH_PROFILE it leaves a profile there when it ends.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_distributor.main import run, shorten_collections
from fleetbus_distributor.settings import DistributorSettings

_TICK = 0.005
_LONG = 0.05


@dataclass
class Lag:
    """Lateness of a timer of the loop was."""

    path: Path
    worst: float = 0.0
    long: int = 0
    worst_cpu: float = 0.0
    long_cpu: int = 0

    def reset(self) -> None:
        self.worst, self.long = 0.0, 0
        self.worst_cpu, self.long_cpu = 0.0, 0

    async def measure(self) -> None:
        while True:
            planned, cpu = time.monotonic() + _TICK, time.thread_time()
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            late, used = now - planned, time.thread_time() - cpu
            self.worst, self.worst_cpu = max(self.worst, late), max(self.worst_cpu, used)
            self.long += late > _LONG
            self.long_cpu += used > _LONG

    def write(self) -> None:
        figures = {
            "worst_ms": round(self.worst * 1e3, 1),
            "over_50_ms": self.long,
            "worst_cpu_ms": round(self.worst_cpu * 1e3, 1),
            "over_50_cpu_ms": self.long_cpu,
        }
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(figures))
        new.replace(self.path)  # never seen half written


async def serve(path: str) -> None:
    shorten_collections()
    shared, settings = load_settings(SharedSettings), load_settings(DistributorSettings)
    set_up_logs(shared.log_format, shared.log_level)
    lag = Lag(Path(path))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lag.reset)
    loop.add_signal_handler(signal.SIGUSR2, lag.write)
    await run_until_stopped(distributor=run(shared, settings), lag=lag.measure())


def run_process(path: str) -> int:
    return run_service("bench-distributor", lambda: serve(path), loop_factory=uvloop.new_event_loop)


def main(path: str) -> int:
    out = os.environ.get("BENCH_PROFILE")
    if not out:
        return run_process(path)
    profile = cProfile.Profile()
    try:
        return profile.runcall(run_process, path)
    finally:
        profile.dump_stats(out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
