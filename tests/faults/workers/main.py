"""`make faults-workers`: kill, stop and starve workers under load, and check what they did.

    python tests/run.py faults.workers [--seeds 1,2,3] [--kills 150] [--keep]
    python tests/run.py faults.workers --cut [--seed N] what CI runs: short, with a fresh seed
    python tests/run.py faults.workers --mutation NAME a worker without one of its rules
    python tests/run.py faults.workers --mutations     each of them: all must be caught (V6)
    python tests/run.py faults.workers --check FOLDER  the records of a seed again

The figures go to reports/faults-workers.json; exit status 1 tells of violations.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from faults.rig.records import Violation
from faults.rig.seeds import Seeds, numbers
from faults.workers.campaign import WorkerPlan, run_workers
from faults.workers.checks import accepted, check_workers, runs_per_event
from faults.workers.mutants import ROLLOUT_MUTATIONS, WORKER_MUTATIONS
from faults.workers.records import WorkerRecords, read_worker_records
from faults.workers.settings import SLOW_STORE, WORKERS
from faults.workers.updates import PHASE, UpdateFigures, check_updates
from fleetbus.process.logs import set_up_logs

SEEDS: Final = (11, 22, 33)
_CUT: Final[Mapping[str, Any]] = {
    "kills": 4,
    "pauses": 1,
    "pace": 0.5,
    "deaths": 3,
    "longest": 1.2,
    "ends": 1,
    "peace": 1.0,
    "updates": 2,
}
"""Less of everything; seeds differ, so that each kind has its turn."""
_MUTATION_SEEDS: Final = (1, 2)
_MUTATED: Final = WorkerPlan(0, kills=14, pauses=10, updates=0)
_UPDATES: Final = WorkerPlan(0, has_kills=False)
_MUTATED_PLANS: Final = {
    # A stale fence shows only if the new owner survives: fewer kills, more pauses.
    "no-fence-check": replace(_MUTATED, kills=6, pauses=14, pace=6.0),
    # A running projector would apply the event in time, and so hide the mutation.
    "enqueue-before-apply": replace(_MUTATED, faults=("kill-projector",)),
}
"""The plans of mutations that the usual plan rarely reveals."""


@dataclass(frozen=True)
class PhaseFigures:
    """The figures of one phase."""

    seed: int
    phase: str
    mutation: str
    seconds: float
    rate: float
    kills: dict[str, int]
    pauses: int
    faults: dict[str, int]
    slow_stores: int
    runs: int
    outcomes: dict[str, int]
    runs_per_event: float
    leases_refused: int
    leases_unconfirmed: int
    ends_refused: int
    writes_held_back: int
    target_writes: int
    target_conflicts: int
    recovered: int
    quarantined: int
    settled_seconds: float
    worker_mb: float
    load_average: float
    violations: list[str]

    @property
    def line(self) -> str:
        refused = self.leases_refused + self.leases_unconfirmed + self.ends_refused
        return (
            f"  {self.phase:6} {self.seconds:4.0f} s  {self.rate:4.0f} writes/s"
            f"  kills {sum(self.kills.values()):3}  pauses {self.pauses:3}"
            f"  faults {sum(self.faults.values()):3}  runs {self.runs:6}"
            f" ({self.runs_per_event:.2f} per change)  refused {refused:4}"
            f"  recovered {self.recovered:4}  settled {self.settled_seconds:4.1f} s"
            f"  worker {self.worker_mb:.0f} MB  violations {len(self.violations)}"
        )


def figures_of(records: WorkerRecords, violations: Sequence[Violation]) -> PhaseFigures:
    """The figures of what was recorded."""
    meta = records.meta
    began = meta["began"]
    log = [line for line in records.log if line["t"] >= began]
    runs = [run for run in records.runs if run.begin >= began]
    begun = [line for line in log if line["kind"] == "fault" and line["phase"] == "begin"]
    lost = [line for _, t, line in records.lines("lease_lost") if t >= began]
    recoveries = [line for _, t, line in records.lines("leases_recovered") if t >= began]
    sizes = [size for _, name, size in records.memory if name.startswith("worker")]
    conflicts = [w for w in records.writes if w["t"] >= began and w["status"] == 409]
    reasons = Counter(line.get("reason", "end") for line in lost)
    return PhaseFigures(
        seed=meta["seed"],
        phase=meta["phase"],
        mutation=meta["mutation"],
        seconds=meta["seconds"],
        rate=meta["rate"],
        kills=dict(
            Counter(x["why"] for x in log if x["kind"] == "kill" and x["process"] in WORKERS)
        ),
        pauses=sum(line["fault"] == "sigstop" for line in begun),
        faults=dict(
            Counter(line["fault"] for line in begun if line["fault"] not in ("sigstop", SLOW_STORE))
        ),
        slow_stores=sum(line["fault"] == SLOW_STORE for line in begun),
        runs=len(runs),
        outcomes=dict(Counter(run.outcome or "killed" for run in runs)),
        runs_per_event=runs_per_event(records),
        leases_refused=reasons["refused"],
        leases_unconfirmed=reasons["unconfirmed"],
        ends_refused=sum("request" in line and "reason" not in line for line in lost),
        writes_held_back=sum(run.outcome == "refused" for run in runs),
        target_writes=sum(write["t"] >= began for write in accepted(records)),
        target_conflicts=len(conflicts),
        recovered=sum(line["recovered"] for line in recoveries),
        quarantined=sum(len(line["quarantined"]) for line in recoveries),
        settled_seconds=meta["settled_seconds"],
        worker_mb=max(sizes, default=0) / 1024,
        load_average=meta["load_average"],
        violations=[f"{violation.rule}: {violation.text}" for violation in violations],
    )


def plans_of(arguments: argparse.Namespace) -> list[WorkerPlan]:
    """The plans of a command."""
    plan = plan_without(arguments.mutation) if arguments.mutation else WorkerPlan(0)
    if arguments.cut:
        seed = arguments.seed or secrets.randbelow(1_000_000) + 1
        seeds, plan = [seed], replace(plan, **_CUT)
    else:
        seeds = [arguments.seed] if arguments.seed else arguments.seeds
        kills, pauses = arguments.kills or plan.kills, arguments.pauses or plan.pauses
        has_kills = plan.has_kills and not arguments.updates_only
        plan = replace(plan, kills=kills, pauses=pauses, has_kills=has_kills)
    return [replace(plan, seed=seed, rate=arguments.rate) for seed in seeds]


def plan_without(mutation: str) -> WorkerPlan:
    """Some seed of a worker with one rule taken away."""
    usual = _UPDATES if mutation in ROLLOUT_MUTATIONS else _MUTATED
    return replace(_MUTATED_PLANS.get(mutation, usual), mutation=mutation)


def command_of(plan: WorkerPlan, *, cut: bool) -> str:
    """The one command that repeats a seed."""
    words = ["python tests/run.py faults.workers", *(["--cut"] if cut else [])]
    words += [f"--seed {plan.seed} --rate {plan.rate:g}"]
    if not cut:
        words += [f"--kills {plan.kills} --pauses {plan.pauses}"]
    if not plan.has_kills and not plan.mutation:
        words.append("--updates-only")
    if plan.mutation:
        words += [f"--mutation {plan.mutation}"]
    return " ".join(words)


def check(phase: Path) -> PhaseFigures | UpdateFigures:
    """The figures and violations of a phase that was recorded."""
    if phase.name == PHASE:
        return check_updates(phase)
    records = read_worker_records(phase)
    return figures_of(records, check_workers(records))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = read_arguments(argv)
    set_up_logs("text", "error")  # each broken connection would be an error of its own
    seeds = Seeds(
        "faults-workers",
        run_workers,
        check,
        lambda plan: command_of(plan, cut=arguments.cut),
        keeps=arguments.keep,
    )
    try:
        if arguments.check:
            return seeds.check_again(arguments.check)
        if arguments.mutations:
            return seeds.run_mutations(
                {
                    name: [
                        replace(plan_without(name), seed=seed, rate=arguments.rate)
                        for seed in _MUTATION_SEEDS
                    ]
                    for name in WORKER_MUTATIONS | ROLLOUT_MUTATIONS
                }
            )
        return seeds.run_all(plans_of(arguments), is_cut=arguments.cut)
    except KeyboardInterrupt:
        print("stopped")
        return 130


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=numbers, default=SEEDS, help="like 1,2,3")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--kills", type=int, help="of workers, per seed; 150")
    parser.add_argument("--pauses", type=int, help="longer than a lease, at least; 30")
    parser.add_argument("--rate", type=float, default=100.0, help="writes per second")
    parser.add_argument("--cut", action="store_true", help="the short form, with a fresh seed")
    parser.add_argument("--updates-only", action="store_true", help="only the rolling updates")
    parser.add_argument("--keep", action="store_true", help="keep the records in any case")
    parser.add_argument(
        "--mutation", default="", choices=["", *WORKER_MUTATIONS, *ROLLOUT_MUTATIONS]
    )
    parser.add_argument("--mutations", action="store_true", help="all of them, one by one")
    parser.add_argument("--check", type=Path, help="check the records of a seed again")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
