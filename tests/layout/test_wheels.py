"""The wheels, installed where no clone is: the demo runs, and a new project passes its test."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest

from fleetbus_cli import app
from support.processes.programs import find_uv

ROOT = Path(__file__).parents[2]


def run(*words: str | Path, cwd: Path) -> str:
    """Run a program that finds nothing of this clone, and return its output."""
    ours = ("FLEETBUS_", "PYTEST", "PYTHON", "UV_", "VIRTUAL_ENV")
    clean = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    ended = subprocess.run(
        words,
        cwd=cwd,
        env={**clean, "PATH": "/usr/bin:/bin", "UV_SYSTEM_CERTS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_wheels_bring_all_that_the_demo_and_a_new_project_need(tmp_path: Path):
    uv, wheels, environment = find_uv(), tmp_path / "wheels", tmp_path / "environment"
    run(uv, "build", "--all-packages", "-q", "-o", wheels, cwd=ROOT)
    run(uv, "venv", "-q", "--seed", "-p", sys.executable, environment, cwd=tmp_path)
    programs = environment / "bin"
    pip = (programs / "python", "-m", "pip", "install", "-q", "--find-links", wheels)
    run(*pip, "fleetbus-devfleet", cwd=tmp_path)
    shown = run(programs / "fleetbus", "demo", "--instant", "--orders", "20", cwd=tmp_path)
    assert "claims held" in shown
    run(programs / "fleetbus", "new", "my-operator", cwd=tmp_path)
    project = tmp_path / "my-operator"
    run(*pip, "-e", ".[test]", cwd=project)
    assert "1 passed" in run(programs / "python", "-m", "pytest", "-q", cwd=project)


def _nothing(*, group: str) -> EntryPoints:
    del group
    return EntryPoints()


@pytest.mark.parametrize("word", ["demo", "dev", "rehearse", "plan", "rollout"])
def test_a_command_of_a_package_that_is_missing_names_it(
    word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(app, "entry_points", _nothing)
    monkeypatch.setattr("sys.argv", ["fleetbus", word])
    with pytest.raises(SystemExit) as ended:
        app.run_command_line()
    package = "fleetbus-distributor" if word in {"plan", "rollout"} else "fleetbus-devfleet"
    assert ended.value.code == 2
    expected = f"`{word}` is in the package {package}: pip install {package}"
    assert expected in capsys.readouterr().err
