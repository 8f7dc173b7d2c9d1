"""Run the conformance cases and, where FLEETBUS_PROBES names them, the probes of real servers.

    make conformance
    make conformance PROBES=FOLDER

The probes ask what the cases ask, and compare with what two real servers answered. They run twice:
against a cluster without controllers (custom resources and the protocol), and against one with
them (everything). docs/emulator.md lists the probes that differ and why; one that differs without
being listed there, or is listed without differing, fails the run, and so does a failed case.

Between the two, kubernetes_asyncio and every kubectl that is found tell their stories
(FLEETBUS_KUBECTLS names others), and random histories look for what no case thinks of: ten times as
many as in `make test` (FLEETBUS_TEST_SEEDS says how many).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import repeat
from pathlib import Path

from support.api.conformance_server import TOKEN, emulated
from support.processes.kubectls import ALL, GIVEN, kubectls

ROOT = Path(__file__).parents[2]
PROBES = "FLEETBUS_PROBES"
DIFFERENCES = ROOT / "docs/emulator.md"
FORMS = {"without controllers": False, "with controllers": True}
AGREES = "agrees"
REAL = "FLEETBUS_TEST_KUBECONFIG"
SEEDS = "FLEETBUS_TEST_SEEDS"


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(name: str, *places: str, **environment: str) -> tuple[int, int]:
    """Run tests; how many pass and how many fail."""
    command = ["-m", "pytest", *places, "-q", "--tb=short"]
    done = run(command, ROOT, **environment)
    counts = {
        outcome: int(n) for n, outcome in re.findall(r"(\d+) (passed|failed|error)", done.stdout)
    }
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if done.returncode:
        print(done.stdout, done.stderr)
        failed = failed or 1  # they could not even be collected
    passed = counts.get("passed", 0)
    if not passed:
        failed = failed or 1  # where everything is skipped, nothing is known
    print(f"{name}: {passed} pass, {failed} fail")
    return passed, failed


def run_clients() -> int:
    """Run the stories of kubectl, with each version there is, and kubernetes_asyncio; failures."""
    print(f"kubectl: {', '.join(kubectls()) or 'none is installed'}")
    versions = os.environ.get(GIVEN, ALL)
    return run_tests("clients", "tests/emulator/clients", FLEETBUS_KUBECTLS=versions)[1]


def run_histories() -> int:
    """Run random histories of informers and of server-side apply; failures."""
    names = ("test_informers.py", "test_apply_model.py")
    places = [f"tests/emulator/apiserver/{name}" for name in names]
    return run_tests("histories", *places, **{SEEDS: os.environ.get(SEEDS, "2000")})[1]


def run_probes(form: str, probes: Path) -> dict[str, str]:
    """Run the probes of a form: by name, AGREES (with one of the real servers) or what differs."""
    controllers = FORMS[form]
    with emulated(
        controllers=controllers,
        bookmark_interval=timedelta(seconds=60),
        definition_delay=timedelta(milliseconds=60),
    ) as server:
        command = ["compare.py", server.url, "--token", TOKEN, "--compact", server.compaction or ""]
        command += [] if controllers else ["--no-core"]
        done = run(command, probes, PYTHONDONTWRITEBYTECODE="1")
    lines = re.findall(r"(?m)^([\w-]+\.\w+) +(.*)$", done.stdout)
    assert lines, done.stdout + done.stderr
    return {name: AGREES if f": {AGREES}" in text else text for name, text in lines}


def listed_differences() -> dict[str, str]:
    """The probes that are known to differ, and why: the rows of a table in the documentation."""
    rows = re.findall(r"(?m)^\| `([\w-]+\.\w+)` +\| (.+?) +\|", DIFFERENCES.read_text())
    return dict(rows)


def compare(probes: Path) -> tuple[int, int, int]:
    """Run the probes in all forms: how many agree, how many differ, how many of these wrongly."""
    listed, different = listed_differences(), set[str]()
    agree = differ = 0
    with ThreadPoolExecutor() as pool:
        results = list(zip(FORMS, pool.map(run_probes, FORMS, repeat(probes)), strict=True))
    for form, texts in results:
        bad = {name: text for name, text in texts.items() if text != AGREES}
        for name, text in bad.items():
            print(f"{name} ({form}): {listed.get(name) or 'NOT LISTED: ' + text}")
        agree, differ = agree + len(texts) - len(bad), differ + len(bad)
        different |= bad.keys()
        # What is newer than both real servers cannot agree with them: such a probe does not apply.
        newer = sum(listed.get(name, "").startswith("newer") for name in bad)
        applied, same = len(texts) - newer, len(texts) - len(bad)
        print(f"probes {form}: {same} of {applied} that apply agree, {newer} do not apply")
    for name in sorted(listed.keys() - different):
        print(f"{name}: listed in {DIFFERENCES.relative_to(ROOT)}, but agrees")
    return agree, differ, len(different ^ listed.keys())


def main() -> int:
    """Run everything; 1 if something is not as it should be."""
    agree, differ = run_tests("cases", "tests/conformance", FLEETBUS_CONFORMANCE="all")
    wrong = differ
    if REAL not in os.environ:  # clients' stories and histories are those of emulated clusters
        wrong += run_clients() + run_histories()
    if PROBES in os.environ:
        same, other, unlisted = compare(Path(os.environ[PROBES]).resolve())
        agree, differ, wrong = agree + same, differ + other, wrong + unlisted
    print(f"{agree} agree, {differ} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
