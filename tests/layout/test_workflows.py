"""The workflows of GitHub: pinned, with few rights, and in step with `.ci/run` (rule S10)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.processes.go_tools import go_tool

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*$")
WRITES = {"packages", "id-token", "attestations", "pages"}
by_name = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def document(path: Path) -> dict[str, Any]:
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in document(path)["jobs"].values() for step in job["steps"]]


def commands(path: Path) -> str:
    return "\n".join(step.get("run", "") for step in steps(path))


def targets() -> set[str]:
    found = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(found)


@by_name
def test_s10_every_action_is_pinned_to_a_commit(path: Path):
    lines = [line.strip(" -") for line in path.read_text().splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not PINNED.fullmatch(line)] == []


@by_name
def test_s10_a_workflow_may_only_read_and_a_job_writes_only_what_it_publishes(path: Path):
    found = document(path)
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        rights = job.get("permissions", {})
        assert {name for name, right in rights.items() if right == "write"} <= WRITES
        assert rights.get("contents", "read") == "read"


@by_name
def test_s10_no_text_of_others_becomes_a_command(path: Path):
    """An expression inside a command would be pasted into the shell, as titles of requests are."""
    assert "${{" not in commands(path)


@by_name
def test_every_target_of_make_exists(path: Path):
    named = set(re.findall(r"make ([a-z][a-z0-9-]*)", commands(path)))
    for job in document(path)["jobs"].values():
        named |= set(job.get("strategy", {}).get("matrix", {}).get("target", []))
    assert named <= targets()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_actionlint_finds_nothing():
    linter = go_tool("github.com/rhysd/actionlint/cmd/actionlint", "v1.7.7")
    ended = subprocess.run((linter, *WORKFLOWS), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_ci_runs_what_the_script_for_ci_runs():
    script = set(re.findall(r"make ([a-z-]+)", (ROOT / ".ci" / "run").read_text()))
    assert script == set(re.findall(r"make ([a-z-]+)", commands(WORKFLOWS[0])))


def test_every_python_that_is_promised_is_tested():
    matrix = document(WORKFLOWS[0])["jobs"]["test"]["strategy"]["matrix"]["include"]
    assert "3.11" in {one["python"] for one in matrix}
    assert {one["store"] for one in matrix} == {"", "redis-server"}
