"""`make e2e`: fleetbus on real control planes of Kubernetes, on loopback.

    python tests/run.py e2e                         all four parts
    python tests/run.py e2e conformance             the emulator's cases, whether they are true
    python tests/run.py e2e scenarios               acceptance scenarios and examples
    python tests/run.py e2e campaign --seed 7       everything broken under load
    python tests/run.py e2e quiet --minutes 6       nothing happens, and nothing is shown failing

The programs are those of KUBEBUILDER_ASSETS, or built once with Go (`binaries.py`). A report goes
to reports/e2e.json and to the terminal; exit status 1 tells of a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from e2e.binaries import ProgramsMissingError, find_programs
from e2e.rounds import ROUNDS
from e2e.stages import run_campaign, run_conformance, run_install, run_quiet, run_scenarios
from fleetbus.process.logs import set_up_logs
from fleetbus_devfleet.processes.children import ChildError
from fleetbus_emulator.scratch import scratch_folder

ROOT: Final = Path(__file__).parents[2]
_REPORT: Final = ROOT / "reports/e2e.json"
_PARTS: Final = ("install", "conformance", "scenarios", "campaign", "quiet")

Json = dict[str, Any]


async def run(arguments: argparse.Namespace) -> Json:
    """Run the parts that are asked for; what each found."""
    programs = find_programs()
    result_of_parts: Json = {"seed": arguments.seed, "load_average": os.getloadavg()[0]}
    for stage in arguments.parts or _PARTS:
        began = time.monotonic()
        with scratch_folder(f"e2e-{stage}") as folder:
            print(f"--- {stage}, seed {arguments.seed}", flush=True)
            result = await _run_part(stage, folder, programs, arguments)
        result_of_parts[stage] = {"seconds": round(time.monotonic() - began), **result}
        skipped = result.get("skipped")  # a reason, or how many tests for which reason
        how = (
            f"skipped: {skipped}"
            if isinstance(skipped, str)
            else f"{result_of_parts[stage]['seconds']} s"
        )
        print(f"{stage}: {how}, {len(result['failures'])} failures", flush=True)
    return result_of_parts


async def _run_part(
    stage: str, folder: Path, programs: Path, arguments: argparse.Namespace
) -> Json:
    if stage == "install":
        return await run_install(folder)
    if stage == "conformance":
        return await run_conformance(folder, programs, arguments.tests)
    if stage == "scenarios":
        return await run_scenarios(folder, programs, arguments.tests)
    if stage == "campaign":
        return await run_campaign(folder, programs, arguments.seed, arguments.rounds)
    return await run_quiet(folder, programs, timedelta(minutes=arguments.minutes))


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(_PARTS)}; all when absent")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000) + 1)
    parser.add_argument("--minutes", type=float, default=4.0, help="of the quiet part")
    parser.add_argument(
        "--rounds", type=_rounds, default=tuple(ROUNDS), help="of the campaign: compact,kill_etcd"
    )
    parser.add_argument("--tests", default="", help="of conformance and scenarios: pytest's -k")
    arguments = parser.parse_args(argv)
    if unknown := sorted({*arguments.parts} - {*_PARTS}):
        parser.error(f"no such part: {', '.join(unknown)}")
    return arguments


def _rounds(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted({*names} - {*ROUNDS}):
        raise argparse.ArgumentTypeError(
            f"no such rounds: {unknown}; there are {', '.join(ROUNDS)}"
        )
    return names


def report(results: Mapping[str, Any]) -> int:
    """Write the report, and say what failed; the exit status."""
    _REPORT.parent.mkdir(exist_ok=True)
    _REPORT.write_text(json.dumps(results, indent=2) + "\n")
    failures = [f"{stage}: {text}" for stage in _PARTS for text in _failures(results.get(stage))]
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(failures)} failures; {_REPORT.relative_to(ROOT)} has the figures")
    return 1 if failures else 0


def _failures(result: Json | None) -> list[str]:
    return result["failures"] if result else []


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = read_arguments(argv)
    set_up_logs("text", "error")  # servers are broken on purpose, and clients say so
    # A shell lets what it starts in the background ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return report(asyncio.run(run(arguments)))
    except (ProgramsMissingError, ChildError) as e:
        print(e, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
