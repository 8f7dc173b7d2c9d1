"""Runs the seeds of a campaign's command: checks each phase, keeps the records, reports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import shutil
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import uvloop

from fleetbus_devfleet.processes.servers import find_nats_server, find_valkey_server
from fleetbus_emulator.scratch import scratch_folder

ROOT: Final = Path(__file__).parents[3]
_REPORTS: Final = ROOT / "reports"
_STORES: Final = ("nats", "nats-copy", "valkey", ".fleetbus-*")


class Planned(Protocol):
    """The plan of one seed; `mutation` names the rule that is disabled, or is empty."""

    @property
    def seed(self) -> int: ...

    @property
    def mutation(self) -> str: ...


class Checked(Protocol):
    """The figures of one phase; a violation is `<rule>: <text>`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def phase(self) -> str: ...

    @property
    def line(self) -> str: ...

    @property
    def violations(self) -> Sequence[str]: ...


Plan = TypeVar("Plan", bound=Planned)
Figures = TypeVar("Figures", bound=Checked)


@dataclass(frozen=True)
class Seeds(Generic[Plan, Figures]):
    """A campaign, seed by seed.

    Attributes:
        name: of its reports.
        run: runs a seed in a folder; yields the folder of each phase when it is recorded.
        check: the figures of a phase, with its violations.
        command_of: the one command that repeats a seed.
        keeps: whether records are kept in any case.
    """

    name: str
    run: Callable[[Plan, Path], AsyncGenerator[Path]]
    check: Callable[[Path], Figures]
    command_of: Callable[[Plan], str]
    keeps: bool = False

    def run_seed(self, plan: Plan) -> list[Figures]:
        """Run one; its records are kept if they tell of violations, or of a failure of ours."""
        print(f"seed {plan.seed}: {self.command_of(plan)}", flush=True)
        is_kept = True
        with scratch_folder(self.name) as folder:
            try:
                all_figures = uvloop.run(self._run(plan, folder))
                is_kept = self.keeps or any(figures.violations for figures in all_figures)
            except KeyboardInterrupt:
                is_kept = False
                raise
            finally:
                if is_kept and (self.keeps or not plan.mutation):
                    self._keep(plan, folder)
        return all_figures

    async def _run(self, plan: Plan, folder: Path) -> list[Figures]:
        all_figures: list[Figures] = []
        async with contextlib.aclosing(self.run(plan, folder)) as phases:
            async for phase in phases:
                all_figures.append(await asyncio.to_thread(self.check_phase, phase))
                if all_figures[-1].violations:
                    print(f"  seed {plan.seed}; again: {self.command_of(plan)}", flush=True)
                if plan.mutation and all_figures[-1].violations:
                    break  # it is caught
        return all_figures

    def check_phase(self, phase: Path) -> Figures:
        """Check what one phase recorded, and tell of it."""
        figures = self.check(phase)
        print(figures.line, flush=True)
        for violation in figures.violations:
            print(f"  VIOLATION {violation}", flush=True)
        return figures

    def check_again(self, folder: Path) -> int:
        """Check the records of a seed that were kept; the exit status."""
        metas = sorted(folder.glob("*/meta.json"))
        all_figures = [self.check_phase(meta.parent) for meta in metas]
        return int(any(figures.violations for figures in all_figures))

    def _keep(self, plan: Plan, folder: Path) -> None:
        """The records and the logs, without the stores."""
        place = _REPORTS / self.name / f"seed-{plan.seed}{plan.mutation and f'-{plan.mutation}'}"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place, ignore=shutil.ignore_patterns(*_STORES))
        print(f"  kept: {place.relative_to(ROOT)}")

    def run_mutations(self, plans: Mapping[str, Iterable[Plan]]) -> int:
        """Each rule taken away, with one seed after the other, until the checker notices (V6)."""
        caught: dict[str, str] = {}
        for name, each in plans.items():
            for plan in each:
                all_figures = self.run_seed(plan)
                rules = sorted(
                    {
                        v.partition(":")[0]
                        for each_figures in all_figures
                        for v in each_figures.violations
                    }
                )
                if rules:
                    phase = all_figures[-1].phase
                    caught[name] = f"seed {plan.seed}, phase {phase}: {', '.join(rules)}"
                    break
        for name in plans:
            print(f"{name:28} {caught.get(name, 'NOT CAUGHT')}")
        _REPORTS.mkdir(exist_ok=True)
        path = _REPORTS / f"{self.name}-mutations.json"
        path.write_text(json.dumps(caught, indent=2) + "\n")
        return 0 if caught.keys() == plans.keys() else 1

    def write_figures(self, all_figures: Sequence[Figures], *, is_cut: bool) -> Path:
        """Write the JSON for machines; answers where."""
        version = sys.version.split()[0]
        document = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {version}",
            "servers": [find_nats_server().name, find_valkey_server().name],
            "violations": sum(len(figures.violations) for figures in all_figures),
            "phases": [asdict(figures) for figures in all_figures],
        }
        path = _REPORTS / f"{self.name}{'-cut' if is_cut else ''}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n")
        return path

    def run_all(self, plans: Iterable[Plan], *, is_cut: bool) -> int:
        """The exit status of a command that runs these; 1 tells of violations."""
        all_figures = [figures for plan in plans for figures in self.run_seed(plan)]
        path = self.write_figures(all_figures, is_cut=is_cut)
        print(f"written: {path.relative_to(ROOT)}")
        return 1 if any(figures.violations for figures in all_figures) else 0


def numbers(text: str) -> tuple[int, ...]:
    """Seeds, as the option `--seeds` has them."""
    return tuple(int(number) for number in text.split(","))
