"""`make faults`: kill and break the watcher and the bus under load, and check that nothing is lost.

    python tests/run.py faults.watchers [--seeds 1,2,3] [--kills 100] [--keep FOLDER]
    python tests/run.py faults.watchers --cut [--seed N] what CI runs: short, with a fresh seed
    python tests/run.py faults.watchers --servers 3    a NATS cluster of three, broken likewise
    python tests/run.py faults.watchers --mutation NAME a watcher without one of its rules
    python tests/run.py faults.watchers --mutations    each of them: all must be caught (V6)
    python tests/run.py faults.watchers --check FOLDER     the records of a seed again

The figures go to reports/faults.json; exit status 1 tells of violations. A seed repeats the
choices, not the moments: processes are never equally fast twice.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from faults.rig.seeds import Seeds, numbers
from faults.watchers.campaign import Plan, run
from faults.watchers.checks import check
from faults.watchers.cluster_faults import CLUSTER_FAULTS
from faults.watchers.faults import FAULTS
from faults.watchers.mutants import MUTATIONS
from faults.watchers.records import read_records
from faults.watchers.report import PhaseReport, report_of
from fleetbus.process.logs import set_up_logs

SEEDS: Final = (11, 22, 33)
_MUTATION_SEEDS: Final = (1, 2, 3)


def plans_of(arguments: argparse.Namespace) -> list[Plan]:
    if arguments.cut:
        seed = arguments.seed or secrets.randbelow(1_000_000) + 1
        return [
            Plan(
                seed,
                kills=8,
                losses=2,
                pace=0.8,
                rate=arguments.rate,
                mutation=arguments.mutation,
                servers=arguments.servers,
            )
        ]
    seeds = [arguments.seed] if arguments.seed else arguments.seeds
    return [
        Plan(
            seed,
            kills=arguments.kills,
            losses=arguments.losses,
            rate=arguments.rate,
            mutation=arguments.mutation,
            kinds=arguments.kinds,
            servers=arguments.servers,
        )
        for seed in seeds
    ]


def command_of(plan: Plan, *, cut: bool) -> str:
    """The one command that repeats a seed."""
    words = ["python tests/run.py faults.watchers", *(["--cut"] if cut else [])]
    words += [f"--seed {plan.seed}"]
    if not cut:
        words += [f"--kills {plan.kills} --losses {plan.losses} --rate {plan.rate:g}"]
    if plan.servers > 1:
        words += [f"--servers {plan.servers}"]
    if plan.kinds:
        words += [f"--kinds {','.join(plan.kinds)}"]
    if plan.mutation:
        words += [f"--mutation {plan.mutation}"]
    return " ".join(words)


def check_phase(phase: Path) -> PhaseReport:
    """The figures and violations of a phase that was recorded."""
    records = read_records(phase)
    return report_of(records, check(records))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = read_arguments(argv)
    set_up_logs("text", "error")  # each broken connection would be an error of its own
    seeds = Seeds(
        "faults",
        run,
        check_phase,
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
                        Plan(seed, kills=30, losses=6, rate=arguments.rate, mutation=name)
                        for seed in _MUTATION_SEEDS
                    ]
                    for name in MUTATIONS
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
    parser.add_argument("--kills", type=int, default=100, help="of watchers, per seed")
    parser.add_argument("--losses", type=int, default=6, help="of stores, per seed")
    parser.add_argument("--rate", type=float, default=1_000.0, help="writes per second")
    parser.add_argument("--cut", action="store_true", help="the short form, with a fresh seed")
    parser.add_argument("--keep", action="store_true", help="keep the records also without faults")
    mutations = ["", *MUTATIONS]
    parser.add_argument(
        "--mutation", default="", choices=mutations, help="take away a rule of the product"
    )
    parser.add_argument("--mutations", action="store_true", help="all of them, one by one")
    parser.add_argument("--check", type=Path, help="check the records of a seed again")
    parser.add_argument(
        "--servers", type=int, default=1, choices=(1, 3), help="of NATS; three are a cluster"
    )
    parser.add_argument("--kinds", type=_kinds, default=(), help="only these faults beside kills")
    return parser.parse_args(argv)


def _kinds(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted({*names} - {fault.name for fault in (*FAULTS, *CLUSTER_FAULTS)}):
        raise argparse.ArgumentTypeError(f"no such faults: {unknown}")
    return names


if __name__ == "__main__":
    sys.exit(main())
