"""`make soak`: hours of churn with small faults; nothing may grow, and the end must be right.

    python tests/run.py soak [--hours 2] [--seed N] [--clusters 20] [--rate 8] [--pace 20]
    python tests/run.py soak --again FOLDER     the samples of a run again, against the limits

The samples, the log of what was done and the figures go to reports/soak; exit status 1 tells of a
series that grows, or of a wrong end. The plots are made by `soak.plots`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

import uvloop

from faults.rig.seeds import ROOT
from fleetbus.process.logs import set_up_logs
from fleetbus_emulator.scratch import scratch_folder
from soak.churn import Churn
from soak.faults import Faults
from soak.final_checks import settled
from soak.fleet import SoakFleet, soak_fleet
from soak.limits import limit_of
from soak.readers import Readers
from soak.samples import read_samples
from soak.sampling import keep_sampling
from soak.slopes import Sample, slope_of

REPORT: Final = ROOT / "reports" / "soak"
WARM_UP_SHARE: Final = 0.5
"""This share of the run is not evaluated: caches fill, and every process may be killed."""
_LONGEST_WARM_UP_OF_LIFE: Final = 300.0
_LEAST_EVALUATED: Final = 600.0
"""Seconds: what processes fill within minutes would be a large slope in a shorter run."""
_SAMPLES: Final = 240
_INTERVALS: Final = (1.0, 15.0)
_SETTLE: Final = timedelta(minutes=6)
"""It takes seconds; so long, because the machine may be busy with others."""
_DISTRIBUTED_SECONDS: Final = 5.0


@dataclass(frozen=True)
class SoakPlan:
    """The plan of a run.

    Attributes:
        seed: of all choices.
        hours: under load.
        clusters: how many, with the hub.
        rate: writes per second.
        pace: seconds between two faults, on average.
        stream_mib: the limit of the stream of events; reached before the run is half over, or
            the stream grows, as it should.
    """

    seed: int
    hours: float = 2.0
    clusters: int = 20
    rate: float = 8.0
    pace: float = 20.0
    stream_mib: int = 16

    @property
    def seconds(self) -> float:
        """The length under load."""
        return self.hours * 3600

    @property
    def command(self) -> str:
        """The one command that repeats the choices."""
        return (
            f"python tests/run.py soak --seed {self.seed} --hours {self.hours:g}"
            f" --clusters {self.clusters} --rate {self.rate:g} --pace {self.pace:g}"
            f" --stream-mib {self.stream_mib}"
        )


@dataclass(frozen=True)
class SoakFigures:
    """The figures of a run.

    Attributes:
        slopes: of each series that has a limit: per hour, and what it added up to.
        growing: the series that exceed their limits.
        wrong: what was wrong at the end.
    """

    at: str
    machine: str
    plan: SoakPlan
    load_average: float
    evaluated: tuple[float, float]
    written: dict[str, int]
    answers: dict[str, int]
    done: dict[str, int]
    settled_seconds: float
    slopes: dict[str, tuple[float, float]]
    growing: list[str]
    wrong: list[str]


async def run_soak(plan: SoakPlan, folder: Path) -> SoakFigures:
    """Run the plan; everything that was recorded is in the folder afterwards."""
    random = Random(f"soak/{plan.seed}")
    async with soak_fleet(folder, plan.clusters, stream_mib=plan.stream_mib) as fleet:
        churn = Churn(fleet, Random(f"churn/{plan.seed}"))
        readers = Readers(fleet, Random(f"readers/{plan.seed}"))
        faults = Faults(fleet, churn, random, plan.pace)
        await churn.fill()
        begin = fleet.now
        least, most = _INTERVALS
        interval = min(most, max(least, plan.seconds / _SAMPLES))
        async with asyncio.TaskGroup() as group:
            samples = folder / "samples.jsonl"
            endless = [
                group.create_task(keep_sampling(fleet, samples, interval), name="samples"),
                group.create_task(churn.drive(plan.rate), name="churn"),
                group.create_task(churn.drive_distributed(_DISTRIBUTED_SECONDS), name="users"),
                group.create_task(readers.run(), name="readers"),
            ]
            reviving = group.create_task(fleet.revive(), name="revive")
            stop = asyncio.Event()
            breaking = group.create_task(faults.run(stop), name="faults")
            await asyncio.sleep(plan.seconds * WARM_UP_SHARE)
            faults.spare()
            await asyncio.sleep(plan.seconds * (1 - WARM_UP_SHARE))
            stop.set()
            await breaking
            end = fleet.now
            for task in endless:
                task.cancel()
            fleet.note("stopped")
            wrong = await settled(fleet, _SETTLE)
            reviving.cancel()
        evaluated = (begin + plan.seconds * WARM_UP_SHARE, end)
        write_log(fleet, folder)
        series = read_samples(folder / "samples.jsonl")
        return figures_of(plan, fleet, churn, readers, series, evaluated, end, wrong)


def write_log(fleet: SoakFleet, folder: Path) -> None:
    """Write down what was done to the fleet."""
    lines = [json.dumps(line) + "\n" for line in fleet.log]
    (folder / "log.jsonl").write_text("".join(lines))


def figures_of(
    plan: SoakPlan,
    fleet: SoakFleet,
    churn: Churn,
    readers: Readers,
    series: dict[str, list[Sample]],
    evaluated: tuple[float, float],
    end: float,
    wrong: Sequence[str],
) -> SoakFigures:
    """The figures of what was recorded."""
    slopes, growing = evaluate(series, *evaluated)
    return SoakFigures(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
        plan=plan,
        load_average=os.getloadavg()[2],
        evaluated=evaluated,
        written=dict(churn.written),
        answers=dict(readers.answers),
        done=dict(Counter(line["kind"] for line in fleet.log)),
        settled_seconds=round(fleet.now - end, 1),
        slopes=slopes,
        growing=growing,
        wrong=list(wrong),
    )


def evaluate(
    series: dict[str, list[Sample]], begin: float, end: float
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """The slopes of all series that have a limit, and those that exceed it, in words.

    None does in a run that is too short to compare it with limits.
    """
    slopes: dict[str, tuple[float, float]] = {}
    growing: list[str] = []
    warm_up = min(_LONGEST_WARM_UP_OF_LIFE, (end - begin) / 6)
    for name, samples in sorted(series.items()):
        limit = limit_of(name)
        slope = slope_of(samples, begin, end, warm_up) if limit else None
        if limit is None or slope is None:
            continue
        slopes[name] = (round(slope.per_hour, 1), round(slope.rise, 1))
        if end - begin >= _LEAST_EVALUATED and limit.is_exceeded_by(slope):
            growing.append(
                f"{name} grows by {slope.per_hour:,.0f} {limit.unit} an hour, by"
                f" {slope.rise:,.0f} in this run; limit {limit.per_hour:,.0f} an hour:"
                f" {limit.reason}"
            )
    return slopes, growing


def keep_records(folder: Path, *, whole: bool) -> None:
    """Copy samples, journals and logs to reports/soak; whole: with the stores as they ended."""
    shutil.rmtree(REPORT, ignore_errors=True)
    REPORT.mkdir(parents=True)
    for path in folder.glob("*.jsonl"):
        shutil.copy(path, REPORT / path.name)
    shutil.copytree(folder / "stack" / "logs", REPORT / "logs")
    shutil.copytree(folder / "records", REPORT / "records")
    if whole:
        left = shutil.ignore_patterns("logs", "*.sock")
        shutil.copytree(folder / "stack", REPORT / "stack", ignore=left)


def show(figures: SoakFigures) -> None:
    """Print the figures, and what is wrong."""
    print(f"done: {figures.done}")
    print(f"written: {figures.written}")
    print(f"answers: {figures.answers}")
    print(f"settled after {figures.settled_seconds} s, load average {figures.load_average:.0f}")
    for name, (per_hour, rise) in figures.slopes.items():
        print(f"  {name:36} {per_hour:16,.1f} an hour {rise:16,.1f} in this run")
    begin, end = figures.evaluated
    if end - begin < _LEAST_EVALUATED:
        print(f"no limits: {end - begin:.0f} s were evaluated, of at least {_LEAST_EVALUATED:.0f}")
    for problem in (*figures.growing, *figures.wrong):
        print(f"  VIOLATION {problem}")


def again(folder: Path) -> int:
    """Compare the samples of a run with the limits once more; the exit status."""
    document = json.loads((folder / "figures.json").read_text())
    begin, end = document["evaluated"]
    slopes, growing = evaluate(read_samples(folder / "samples.jsonl"), begin, end)
    for name, (per_hour, rise) in slopes.items():
        print(f"  {name:36} {per_hour:16,.1f} an hour {rise:16,.1f} in this run")
    for problem in growing:
        print(f"  VIOLATION {problem}")
    return int(bool(growing))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = read_arguments(argv)
    if arguments.again:
        return again(arguments.again)
    set_up_logs("text", "error")  # each broken connection would be an error of its own
    plan = SoakPlan(
        seed=arguments.seed or secrets.randbelow(1_000_000) + 1,
        hours=arguments.hours,
        clusters=arguments.clusters,
        rate=arguments.rate,
        pace=arguments.pace,
        stream_mib=arguments.stream_mib,
    )
    print(f"seed {plan.seed}: {plan.command}", flush=True)
    with scratch_folder("soak") as folder:
        try:
            figures = uvloop.run(run_soak(plan, folder))
        except BaseException as e:
            keep_records(folder, whole=True)
            if not isinstance(e, KeyboardInterrupt):
                raise
            print("stopped")
            return 130
        keep_records(folder, whole=bool(figures.wrong))
    (REPORT / "figures.json").write_text(json.dumps(asdict(figures), indent=2) + "\n")
    show(figures)
    return int(bool(figures.growing or figures.wrong))


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments of the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hours", type=float, default=2.0, help="under load; 2")
    parser.add_argument("--seed", type=int, default=0, help="of all choices; a fresh one")
    parser.add_argument("--clusters", type=int, default=20, help="with the hub; 20")
    parser.add_argument("--rate", type=float, default=8.0, help="writes per second; 8")
    parser.add_argument("--pace", type=float, default=20.0, help="seconds between two faults; 20")
    parser.add_argument("--stream-mib", type=int, default=16, help="limit of the stream; 16")
    parser.add_argument("--again", type=Path, help="evaluate the samples of a run again")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
