"""`make faults-distributor`: kill distributors between two writes, and check what they deleted.

    python tests/run.py faults.distributors [--seeds 1,2,3] [--kills 100] [--keep]
    python tests/run.py faults.distributors --cut [--seed N]  what CI runs: short, a fresh seed
    python tests/run.py faults.distributors --steps all       only the directed steps
    python tests/run.py faults.distributors --mutation NAME   distributors without one of the rules
    python tests/run.py faults.distributors --mutations       each of them: all must be caught (V6)
    python tests/run.py faults.distributors --check FOLDER    the records of a seed again

The figures go to reports/faults-distributor.json; exit status 1 tells of violations.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from faults.distributors.call_checks import passed_on
from faults.distributors.campaign import DistributorPlan, run_distributors
from faults.distributors.checks import (
    check_distributors,
    count_agent_kills,
    count_faults,
    read_distributor_records,
)
from faults.distributors.mutants import DISTRIBUTOR_MUTATIONS
from faults.distributors.steps import STEPS
from faults.rig.seeds import Seeds, numbers
from fleetbus.process.logs import set_up_logs

SEEDS: Final = (11, 22, 33)
_CUT: Final[Mapping[str, Any]] = {
    "kills": 4,
    "points": 3,
    "stops": 2,
    "rounds": 1,
    "pace": 0.8,
    "steps": (),
}
_MUTATION_SEEDS: Final = (1, 2)


@dataclass(frozen=True)
class DistributorFigures:
    """The figures of one phase.

    Attributes:
        kills: of distributors.
        at_points: of distributors and agents between two writes.
        stops: points at which distributors stood still.
        agent_writes: writes that agents passed on.
    """

    seed: int
    phase: str
    mutation: str
    seconds: float
    kills: int
    at_points: int
    stops: int
    agent_kills: int
    agent_writes: int
    faults: dict[str, int]
    user_changes: int
    writes: int
    deletions: int
    plans: int
    orphans: int
    settled_seconds: float
    load_average: float
    violations: list[str]

    @property
    def line(self) -> str:
        return (
            f"  {self.phase:6} {self.seconds:4.0f} s  kills {self.kills:3}"
            f"  of agents {self.agent_kills:3} ({self.at_points} at points)"
            f"  stops {self.stops:2}"
            f"  faults {sum(self.faults.values()):3}"
            f"  changes on the hub {self.user_changes:4}  writes {self.writes:5}"
            f" ({self.deletions} deletions), {self.agent_writes} by agents"
            f"  plans {self.plans}  orphans {self.orphans}"
            f"  settled {self.settled_seconds:4.1f} s  violations {len(self.violations)}"
        )


def check(phase: Path) -> DistributorFigures:
    """The figures and violations of a phase that was recorded."""
    records = read_distributor_records(phase)
    meta, since = records.meta, records.meta["began"]
    writes = [
        write for write in records.history.writes if write.by_distributor and write.t >= since
    ]
    versions = [version for each in records.history.versions.values() for version in each]
    return DistributorFigures(
        seed=meta["seed"],
        phase=meta["phase"],
        mutation=meta["mutation"],
        seconds=meta["seconds"],
        kills=meta["kills"],
        at_points=sum(sending["dies"] and sending["t"] >= since for sending in records.sent),
        stops=sum(entry["kind"] == "stopped" and entry["t"] >= since for entry in records.log),
        agent_kills=count_agent_kills(records),
        agent_writes=len([*passed_on([line for line in records.sent if line["t"] >= since])]),
        faults=count_faults(records),
        user_changes=sum(version.is_edit and version.t >= since for version in versions),
        writes=len(writes),
        deletions=sum(write.type == "DELETED" for write in writes),
        plans=len(records.plans),
        orphans=len(records.final["orphans"]),
        settled_seconds=meta["settled_seconds"],
        load_average=meta["load_average"],
        violations=[
            f"{violation.rule}: {violation.text}" for violation in check_distributors(records)
        ],
    )


def plans_of(arguments: argparse.Namespace) -> list[DistributorPlan]:
    """The plans of a command."""
    plan = plan_without(arguments.mutation) if arguments.mutation else DistributorPlan(0)
    if arguments.cut:
        seed = arguments.seed or secrets.randbelow(1_000_000) + 1
        return [replace(plan, seed=seed, **_CUT)]
    seeds = [arguments.seed] if arguments.seed else arguments.seeds
    kills = plan.kills if arguments.kills is None else arguments.kills
    plan = replace(plan, kills=kills)
    if arguments.steps is not None:
        plan = replace(plan, kills=0, points=0, stops=0, rounds=0, steps=arguments.steps)
    if arguments.stops_only:
        plan = replace(plan, kills=0, points=0, rounds=0, steps=())
    return [replace(plan, seed=seed) for seed in seeds]


def names(text: str) -> tuple[str, ...]:
    """Names of directed steps, as the option `--steps` has them; "all" for each.

    Raises:
        ArgumentTypeError: there is no such step.
    """
    chosen = tuple(STEPS) if text == "all" else tuple(text.split(","))
    if unknown := set(chosen) - STEPS.keys():
        steps = ", ".join(STEPS)
        raise argparse.ArgumentTypeError(f"no step {', '.join(sorted(unknown))}; there are {steps}")
    return chosen


def plan_without(mutation: str) -> DistributorPlan:
    """Some seed of distributors with one rule taken away."""
    steps = DISTRIBUTOR_MUTATIONS[mutation].steps
    return DistributorPlan(0, kills=0, points=0, stops=0, rounds=0, steps=steps, mutation=mutation)


def command_of(plan: DistributorPlan, *, cut: bool) -> str:
    """The one command that repeats a seed."""
    words = ["python tests/run.py faults.distributors", *(["--cut"] if cut else [])]
    words += [f"--seed {plan.seed}"]
    if plan.steps and not plan.mutation:
        words += [f"--steps {','.join(plan.steps)}"]
    elif not cut and not plan.mutation:
        words += ["--stops-only"] if plan.points == 0 else [f"--kills {plan.kills}"]
    if plan.mutation:
        words += [f"--mutation {plan.mutation}"]
    return " ".join(words)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = read_arguments(argv)
    set_up_logs("text", "error")  # each broken connection would be an error of its own
    seeds = Seeds(
        "faults-distributor",
        run_distributors,
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
                    name: [replace(plan_without(name), seed=seed) for seed in _MUTATION_SEEDS]
                    for name in DISTRIBUTOR_MUTATIONS
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
    parser.add_argument("--kills", type=int, help="at any time, per seed; 100")
    parser.add_argument("--steps", type=names, help="only these directed steps, or all")
    parser.add_argument("--stops-only", action="store_true", help="only distributors that stop")
    parser.add_argument("--cut", action="store_true", help="the short form, with a fresh seed")
    parser.add_argument("--keep", action="store_true", help="keep the records in any case")
    parser.add_argument("--mutation", default="", choices=["", *DISTRIBUTOR_MUTATIONS])
    parser.add_argument("--mutations", action="store_true", help="all of them, one by one")
    parser.add_argument("--check", type=Path, help="check the records of a seed again")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
