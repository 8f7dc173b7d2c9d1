"""`make faults-watches`: clients list and watch through the query API while everything breaks.

    python tests/run.py faults.queries [--seeds 1,2,3] [--decks 3] [--keep]
    python tests/run.py faults.queries --cut [--seed N]  what CI runs: short, with a fresh seed
    python tests/run.py faults.queries --mutation NAME   a query API without one of its rules
    python tests/run.py faults.queries --mutations       each of them: all must be caught (V6)
    python tests/run.py faults.queries --check FOLDER    the records of a seed again

The figures go to reports/faults-watches.json; exit status 1 tells of violations. A seed repeats the
choices, not the moments.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from faults.queries.campaign import KINDS, QueryPlan, run_queries
from faults.queries.checks import check_queries, watches_of
from faults.queries.faults import QUERY_FAULTS
from faults.queries.mutants import QUERY_MUTATIONS
from faults.queries.records import QueryRecords, read_query_records
from faults.queries.settings import APIS
from faults.rig.records import Violation
from faults.rig.seeds import Seeds, numbers
from fleetbus.process.logs import set_up_logs

SEEDS: Final = (11, 22, 33)
_MUTATION_SEEDS: Final = (1, 2)
_CUT_FAULTS: Final = 8
"""So many kinds are in the short form, each once; seeds differ, so that each has its turn."""
_CUT_KINDS: Final = KINDS - {"informer"}
"""An informer is compiled for minutes where it never was, and waits for up to a minute."""


@dataclass(frozen=True)
class WatchFigures:
    """The figures of a seed."""

    seed: int
    phase: str
    mutation: str
    seconds: float
    rate: float
    faults: dict[str, int]
    clients: list[str]
    lists: int
    watches: int
    events: int
    bookmarks: int
    expired: int
    refused: dict[str, int]
    agreed_seconds: dict[str, float]
    settled_seconds: float
    api_mb: float
    load_average: float
    violations: list[str]

    @property
    def line(self) -> str:
        return (
            f"  {self.phase:8} {self.seconds:4.0f} s  {self.rate:4.0f} writes/s"
            f"  faults {sum(self.faults.values()):3}  clients {len(self.clients)}"
            f"  lists {self.lists:4}  watches {self.watches:4}  events {self.events:6}"
            f"  410 {self.expired:3}  settled {self.settled_seconds:4.1f} s"
            f"  query API {self.api_mb:.0f} MB  violations {len(self.violations)}"
        )


def figures_of(records: QueryRecords, violations: Sequence[Violation]) -> WatchFigures:
    """The figures of what was recorded."""
    meta = records.meta
    lines = [line for each in records.clients.values() for line in each]
    kinds = Counter(line["kind"] for line in lines)
    sizes = [size for _, name, size in records.memory if name.partition("/")[0] in APIS]
    begun = [
        entry for entry in records.log if entry["kind"] == "fault" and entry["phase"] == "begin"
    ]
    return WatchFigures(
        seed=meta["seed"],
        phase=meta["phase"],
        mutation=meta["mutation"],
        seconds=meta["seconds"],
        rate=meta["rate"],
        faults=dict(Counter(line["fault"] for line in begun)),
        clients=meta["clients"],
        lists=kinds["list"],
        watches=sum(len([*watches_of(each)]) for each in records.clients.values()),
        events=kinds["event"],
        bookmarks=kinds["bookmark"],
        expired=kinds["gone"],
        refused=dict(Counter(str(line["status"]) for line in lines if line["kind"] == "refused")),
        agreed_seconds={name: round(took, 1) for name, took in meta["agreed"].items()},
        settled_seconds=meta["settled_seconds"],
        api_mb=max(sizes, default=0) / 1024,
        load_average=meta["load_average"],
        violations=[f"{violation.rule}: {violation.text}" for violation in violations],
    )


def plans_of(arguments: argparse.Namespace) -> list[QueryPlan]:
    """The plans of a command."""
    plan = QueryPlan(
        0,
        decks=arguments.decks,
        rate=arguments.rate,
        mutation=arguments.mutation,
        faults=arguments.faults,
    )
    if arguments.cut:
        seed = arguments.seed or secrets.randbelow(1_000_000) + 1
        faults = arguments.faults or _cut_faults(seed)
        return [replace(plan, seed=seed, decks=1, calm=1.0, faults=faults, kinds=_CUT_KINDS)]
    seeds = [arguments.seed] if arguments.seed else arguments.seeds
    return [replace(plan, seed=seed) for seed in seeds]


def _cut_faults(seed: int) -> tuple[str, ...]:
    names = [fault.name for fault in QUERY_FAULTS]
    return tuple(Random(f"query-cut/{seed}").sample(names, _CUT_FAULTS))


def command_of(plan: QueryPlan, *, cut: bool) -> str:
    """The one command that repeats a seed."""
    words = ["python tests/run.py faults.queries", *(["--cut"] if cut else [])]
    words += [f"--seed {plan.seed} --rate {plan.rate:g}"]
    if not cut:
        words += [f"--decks {plan.decks}"]
    if plan.faults and not (cut and plan.faults == _cut_faults(plan.seed)):
        words += [f"--faults {','.join(plan.faults)}"]
    if plan.mutation:
        words += [f"--mutation {plan.mutation}"]
    return " ".join(words)


def check(phase: Path) -> WatchFigures:
    """The figures and violations of a seed that was recorded."""
    records = read_query_records(phase)
    return figures_of(records, check_queries(records))


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = read_arguments(argv)
    set_up_logs("text", "error")  # each broken connection would be an error of its own
    seeds = Seeds(
        "faults-watches",
        run_queries,
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
                        replace(mutation.plan, seed=seed, mutation=name) for seed in _MUTATION_SEEDS
                    ]
                    for name, mutation in QUERY_MUTATIONS.items()
                }
            )
        return seeds.run_all(plans_of(arguments), is_cut=arguments.cut)
    except KeyboardInterrupt:
        print("stopped")
        return 130


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments of the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=numbers, default=SEEDS, help="like 1,2,3")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--decks", type=int, default=3, help="of faults, one of each kind; 3")
    parser.add_argument("--rate", type=float, default=60.0, help="writes per second")
    parser.add_argument("--cut", action="store_true", help="the short form, with a fresh seed")
    parser.add_argument("--keep", action="store_true", help="keep the records in any case")
    parser.add_argument("--faults", type=_faults, default=(), help="only these")
    parser.add_argument("--mutation", default="", choices=["", *QUERY_MUTATIONS])
    parser.add_argument("--mutations", action="store_true", help="all of them, one by one")
    parser.add_argument("--check", type=Path, help="check the records of a seed again")
    return parser.parse_args(argv)


def _faults(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted({*names} - {fault.name for fault in QUERY_FAULTS}):
        raise argparse.ArgumentTypeError(f"no such faults: {unknown}")
    return names


if __name__ == "__main__":
    sys.exit(main())
