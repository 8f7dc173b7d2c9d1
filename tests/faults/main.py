"""`make faults`: kill and break the watcher and the bus under load, and check that nothing is lost.

    python tests/faults/main.py [--seeds 1,2,3] [--kills 100] [--keep FOLDER]
    python tests/faults/main.py --cut [--seed N]           what CI runs: short, with a fresh seed
    python tests/faults/main.py --mutation NAME            a watcher without one of its rules
    python tests/faults/main.py --mutations                each of them: all must be caught (V6)

The figures go to reports/faults.json; exit status 1 tells of violations. A seed repeats the
choices, not the moments: processes are never equally fast twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests/support")]

import uvloop  # noqa: E402 -- behind the line that finds ours
from campaign import Plan, run  # noqa: E402
from check import check  # noqa: E402
from checker import read_records  # noqa: E402
from mutants import MUTATIONS  # noqa: E402
from report import PhaseReport, report_of, write_mutations, write_report  # noqa: E402

from faults import FAULTS  # noqa: E402
from fleetbus.logs import set_up_logs  # noqa: E402
from fleetbus_devfleet.scratch import scratch_folder  # noqa: E402

SEEDS: Final = (11, 22, 33)
_MUTATION_SEEDS: Final = (1, 2, 3)
_KEPT: Final = ROOT / "reports" / "faults"


def plans_of(arguments: argparse.Namespace) -> list[Plan]:
    if arguments.cut:
        seed = arguments.seed or secrets.randbelow(1_000_000) + 1
        return [
            Plan(
                seed, kills=8, losses=1, pace=0.8, rate=arguments.rate, mutation=arguments.mutation
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
        )
        for seed in seeds
    ]


def command_of(plan: Plan, *, cut: bool) -> str:
    """The one command that repeats a seed."""
    words = ["python tests/faults/main.py", *(["--cut"] if cut else [])]
    words += [f"--seed {plan.seed}"]
    if not cut:
        words += [f"--kills {plan.kills} --losses {plan.losses} --rate {plan.rate:g}"]
    if plan.kinds:
        words += [f"--kinds {','.join(plan.kinds)}"]
    if plan.mutation:
        words += [f"--mutation {plan.mutation}"]
    return " ".join(words)


async def run_plan(plan: Plan, folder: Path, command: str) -> list[PhaseReport]:
    """Run a seed and check each phase as soon as it is recorded."""
    reports: list[PhaseReport] = []
    phases = run(plan, folder)
    async with contextlib.aclosing(phases):
        async for phase in phases:
            records = await asyncio.to_thread(read_records, phase)
            violations = await asyncio.to_thread(check, records)
            report = report_of(records, violations)
            print(report.line, flush=True)
            for violation in violations:
                print(f"  VIOLATION {violation.rule}: {violation.text}")
            if violations:
                print(f"  seed {plan.seed}; again: {command}\n  records: {phase}", flush=True)
            reports.append(report)
            if plan.mutation and violations:
                break  # it is caught
    return reports


def run_seed(plan: Plan, arguments: argparse.Namespace) -> list[PhaseReport]:
    """Run one seed; its records are kept if they tell of violations, or of a failure of ours."""
    command = command_of(plan, cut=arguments.cut)
    print(f"seed {plan.seed}: {command}", flush=True)
    is_kept = True
    with scratch_folder("faults") as folder:
        try:
            found = uvloop.run(run_plan(plan, folder, command))
            is_kept = arguments.keep or any(report.violations for report in found)
        except KeyboardInterrupt:
            is_kept = False
            raise
        finally:
            if is_kept and not plan.mutation:
                _keep(folder, _KEPT / f"seed-{plan.seed}")
    return found


def run_mutations(arguments: argparse.Namespace) -> int:
    """Each rule taken away, with one seed after the other, until the checker notices."""
    caught: dict[str, str] = {}
    for name in MUTATIONS:
        for seed in _MUTATION_SEEDS:
            plan = Plan(seed, kills=30, losses=6, rate=arguments.rate, mutation=name)
            reports = run_seed(plan, arguments)
            rules = sorted({v.partition(":")[0] for r in reports for v in r.violations})
            if rules:
                caught[name] = f"seed {seed}, phase {reports[-1].phase}: {', '.join(rules)}"
                break
    for name in MUTATIONS:
        print(f"{name:28} {caught.get(name, 'NOT CAUGHT')}")
    write_mutations(caught, ROOT / "reports")
    return 0 if len(caught) == len(MUTATIONS) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = read_arguments(argv)
    set_up_logs("text", "error")  # whoever breaks connections is told so by each of his own
    try:
        if arguments.mutations:
            return run_mutations(arguments)
        reports = [report for plan in plans_of(arguments) for report in run_seed(plan, arguments)]
    except KeyboardInterrupt:
        print("stopped")
        return 130
    path = write_report(reports, ROOT / "reports", is_cut=arguments.cut)
    print(f"written: {path.relative_to(ROOT)}")
    return 1 if any(report.violations for report in reports) else 0


def _keep(folder: Path, place: Path) -> None:
    """The records and the logs, without the stores."""
    shutil.rmtree(place, ignore_errors=True)
    stores = shutil.ignore_patterns("nats", "nats-copy", "valkey", ".fleetbus-owner")
    shutil.copytree(folder, place, ignore=stores)
    print(f"  kept: {place.relative_to(ROOT)}")


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=_numbers, default=SEEDS, help="like 1,2,3")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--kills", type=int, default=100, help="of watchers, per seed")
    parser.add_argument("--losses", type=int, default=6, help="of stores of NATS, per seed")
    parser.add_argument("--rate", type=float, default=1_000.0, help="writes per second")
    parser.add_argument("--cut", action="store_true", help="the short form, with a fresh seed")
    parser.add_argument("--keep", action="store_true", help="keep the records also without faults")
    mutations = ["", *MUTATIONS]
    parser.add_argument(
        "--mutation", default="", choices=mutations, help="take away a rule of the product"
    )
    parser.add_argument("--mutations", action="store_true", help="all of them, one by one")
    parser.add_argument("--kinds", type=_kinds, default=(), help="only these faults beside kills")
    return parser.parse_args(argv)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _kinds(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted({*names} - {fault.name for fault in FAULTS}):
        raise argparse.ArgumentTypeError(f"no such faults: {unknown}")
    return names


if __name__ == "__main__":
    sys.exit(main())
