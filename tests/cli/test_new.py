"""`fleetbus new`: a project that works as it is made, and a refusal that changes nothing."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Callable

import pytest

from fleetbus.controller.load import load_controllers
from fleetbus_cli.app import app
from fleetbus_cli.main import main
from support.processes.in_process_commands import status_of

Call = Callable[..., tuple[int, str, str]]
FILES = {"controller.py", "test_controller.py", "pyproject.toml"}
BIN = pathlib.Path(sys.executable).parent


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> Call:
    def call_one(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fleetbus", *arguments])
        monkeypatch.setattr(app, "registered_groups", [])
        status = status_of(main)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    monkeypatch.chdir(tmp_path)
    return call_one


@pytest.mark.slow
@pytest.mark.timeout(120)  # a process that loads everything, on a machine that has other work
def test_a_new_project_passes_its_own_test(call: Call, tmp_path: pathlib.Path) -> None:
    status, _, message = call("new", "my-operator")
    assert status == 0, message
    folder = tmp_path / "my-operator"
    assert {path.name for path in folder.iterdir()} == FILES
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout
    assert "arning" not in ended.stdout + ended.stderr


def test_a_new_project_has_its_name_everywhere_and_its_controller_loads(
    call: Call, tmp_path: pathlib.Path
) -> None:
    assert call("new", "my-operator")[0] == 0
    folder = tmp_path / "my-operator"
    (controller,) = load_controllers([str(folder / "controller.py")])
    assert controller.name == "my-operator"
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-operator"
    assert not any("my-project" in path.read_text() for path in folder.iterdir() if path.is_file())


def test_a_new_project_can_be_installed_by_any_pip(call: Call, tmp_path: pathlib.Path) -> None:
    """`tests/release/test_installed.py` installs one."""
    _, printed, _ = call("new", "my-operator")
    assert f"source {sys.prefix}/bin/activate" in printed
    project = tomllib.loads((tmp_path / "my-operator" / "pyproject.toml").read_text())
    assert "uv" not in project["tool"], "pip reads no tables of uv"
    assert {"fleetbus[dev]", "pytest"} <= {*project["project"]["optional-dependencies"]["test"]}
    assert project["build-system"]["build-backend"] == "setuptools.build_meta"
    modules = project["tool"]["setuptools"]["py-modules"]
    assert modules == ["controller"], "two modules: pip must not guess"


def test_the_next_commands_that_are_printed_exist(call: Call, tmp_path: pathlib.Path) -> None:
    _, printed, _ = call("new", "my-operator")
    lines = printed.partition("next:\n")[2].partition("\nand")[0].splitlines()
    commands = [line.strip().partition("    ")[0].split() for line in lines]
    assert commands[0] == ["cd", "my-operator"]
    for command in commands[1:]:
        ended = subprocess.run(
            [str(BIN / command[0]), *command[1:], "--help"],
            cwd=tmp_path / "my-operator",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert ended.returncode == 0, f"{command}: {ended.stderr}"
    assert {path.name for path in (tmp_path / "my-operator").iterdir()} >= FILES


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My Operator", "'My Operator' is not a DNS-1123 label: lower-case letters, digits and"),
        ("../elsewhere", "is not a DNS-1123 label"),
        ("my_operator", "is not a DNS-1123 label"),
        ("a" * 64, "at most 63 characters"),
        ("fleetbus", "the name 'fleetbus' is reserved"),
        ("projector", "the name 'projector' is reserved"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_is_made(
    call: Call, tmp_path: pathlib.Path, name: str, message: str
) -> None:
    status, printed, err = call("new", name)
    assert (status, printed) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_folder", [True, False])
def test_what_exists_is_refused_and_left_alone(
    call: Call, tmp_path: pathlib.Path, is_folder: bool
) -> None:
    path = tmp_path / "my-operator"
    if is_folder:
        path.mkdir()
    else:
        path.write_text("mine")
    status, _, err = call("new", "my-operator")
    assert (status, err) == (2, "fleetbus: my-operator already exists; nothing was changed\n")
    assert list(path.iterdir()) == [] if is_folder else path.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_one_message(
    call: Call, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = tmp_path / "lost"
    lost.mkdir()
    monkeypatch.chdir(lost)
    lost.rmdir()
    status, _, err = call("new", "my-operator")
    assert (status, err) == (
        2,
        "fleetbus: cannot create my-operator: No such file or directory\n",
    )
