"""Runs every benchmark and writes reports/bench.json; each prints its figures beside a baseline.

    python tests/run.py bench [NAME ...]

With `--json` a benchmark prints its table, and then the same figures as one line of JSON.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from support.processes.programs import module

REPORT = pathlib.Path(__file__).parents[2] / "reports" / "bench.json"
BENCHMARKS = (
    *("snapshot", "workqueue", "fairness", "latency", "cost", "idle", "rebuild"),
    *("fleet", "watcher", "relist", "replicas", "pool", "apiserver", "restart"),
    *(
        "distributor",
        "accounts",
        "query",
        "questions",
        "watchers",
        "history",
        "archive",
        "capture",
        "agent",
        "agents",
    ),
)


def main(names: Sequence[str]) -> int:
    report: dict[str, object] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
    }
    if unknown := set(names) - set(BENCHMARKS):
        there = ", ".join(BENCHMARKS)
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {there}", file=sys.stderr)
        return 2
    failed = False
    for name in names or BENCHMARKS:
        print(f"--- {name}", flush=True)
        done = subprocess.run(
            module(f"bench.{name}", "--json"),
            stdout=subprocess.PIPE,
            check=False,
        )
        table, _, figures = done.stdout.decode().rstrip().rpartition("\n")
        if done.returncode:
            print(done.stdout.decode(), flush=True)
            print(f"{name} failed with exit status {done.returncode}", file=sys.stderr)
            failed = True
            continue
        print(table, flush=True)
        report[name] = json.loads(figures)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written: {REPORT.relative_to(pathlib.Path.cwd())}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
