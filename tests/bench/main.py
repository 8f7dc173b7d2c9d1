"""Runs every benchmark and writes reports/bench.json; each prints its figures beside a baseline."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
import sys
from datetime import UTC, datetime

HERE = pathlib.Path(__file__).parent
REPORT = HERE.parents[1] / "reports" / "bench.json"
BENCHMARKS = ("snapshot", "workqueue", "latency", "watcher", "relist", "twins", "pool", "apiserver")


def main() -> int:
    report: dict[str, object] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
    }
    for name in BENCHMARKS:
        print(f"--- {name}", flush=True)
        done = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py"), "--json"],
            stdout=subprocess.PIPE,
            check=False,
        )
        print(done.stdout.decode(), flush=True)
        if done.returncode:
            print(f"{name} failed with exit status {done.returncode}", file=sys.stderr)
            return 1
        report[name] = json.loads(done.stdout)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written: {REPORT.relative_to(pathlib.Path.cwd())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
