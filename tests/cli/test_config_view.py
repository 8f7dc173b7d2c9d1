"""Which fleet answers is said: `fleetbus config view`, and lines on stderr."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from fleetbus_cli.app import app
from fleetbus_cli.config.origins import note_origins
from fleetbus_cli.target import resolve_target


@pytest.fixture(autouse=True)
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    for name in list(os.environ):
        if name.startswith("FLEETBUS_") or name == "KUBECONFIG":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def write(path: pathlib.Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


def shown(*arguments: str) -> dict[str, tuple[str, str]]:
    ended = CliRunner().invoke(app, ["config", "view", "-o", "json", *arguments])
    assert ended.exit_code == 0, ended.output
    return {
        setting["name"]: (setting["value"], setting["origin"])
        for setting in json.loads(ended.stdout)
    }


def test_each_address_is_shown_with_the_place_that_it_is_from(
    home: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    state = {"pid": os.getpid(), "nats_url": "nats://dev", "kubeconfig": "/k", "clusters": ["hub"]}
    stack = write(pathlib.Path(".fleetbus/dev/stack.json").absolute(), json.dumps(state))
    config = write(home / ".fleetbus" / "config.yaml", "redis_url: redis://:pw@file\nca: /ca\n")
    monkeypatch.setenv("FLEETBUS_API_URL", "http://env")
    monkeypatch.setenv("FLEETBUS_TOKEN", "hush")
    assert shown() == {
        "api_url": ("http://env", "environment FLEETBUS_API_URL"),
        "nats_url": ("nats://dev", f"dev fleet {stack}"),
        "redis_url": ("redis://file", f"file {config}"),
        "token": ("(set)", "environment FLEETBUS_TOKEN"),
        "token_file": ("", "not set"),
        "ca": ("/ca", f"file {config}"),
        "hub_kubeconfig": ("/k", f"dev fleet {stack}"),
    }
    assert shown("--api-url", "http://flag")["api_url"] == ("http://flag", "flag")


FORMER = ".multi-cluster-operator/config"
CONFIG = ".fleetbus/config.yaml"


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        (FORMER, "server: 8888\n", ["api_url"]),
        (CONFIG, "api_url: http://old\n", ["api_url"]),
        (CONFIG, "nats_url: nats://old\nredis_url: redis://old\n", ["nats_url", "redis_url"]),
    ],
)
def test_a_file_in_the_home_directory_never_wins_silently(
    home: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    text: str,
    names: list[str],
):
    path = write(home / file, text)
    note_origins(program="fleetbus")
    line = f"fleetbus: the address of the fleet is from {path}; `fleetbus config view` shows"
    for name in names * 2:
        assert resolve_target().require(name)
    errors = capsys.readouterr().err
    assert errors.startswith(line)
    assert errors.count("\n") == 1, "one line of a command"

    note_origins()
    for name in names:
        flag: dict[str, Any] = {name: "http://flag"}
        resolve_target(**flag).require(name)
        monkeypatch.setenv(f"FLEETBUS_{name.upper()}", "http://env")
        resolve_target().require(name)
    for name in names:
        monkeypatch.delenv(f"FLEETBUS_{name.upper()}")
    state = {"pid": os.getpid()} | dict.fromkeys(names, "http://dev")
    write(pathlib.Path(".fleetbus/dev/stack.json").absolute(), json.dumps(state))
    for name in names:
        assert resolve_target().require(name) == "http://dev"
    assert capsys.readouterr().err == ""


def test_a_file_that_a_variable_names_is_expected(
    home: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = write(home / "other.yaml", "api_url: http://other\n")
    monkeypatch.setenv("FLEETBUS_CONFIG", file)
    note_origins()
    assert resolve_target().require("api_url") == "http://other"
    assert capsys.readouterr().err == ""
    assert shown()["api_url"] == ("http://other", f"file {file} (FLEETBUS_CONFIG)")


@pytest.mark.parametrize("file", [FORMER, CONFIG])
def test_every_program_says_it_on_stderr_and_completion_nothing(home: pathlib.Path, file: str):
    text = "serverPort: 1\n" if file == FORMER else "api_url: http://127.0.0.1:1\n"
    path = write(home / file, text)
    folder = pathlib.Path(sys.executable).parent
    for program, words in (("fleetbus", "get pods -o json"), ("kubectl-multicluster", "list pods")):
        ended = run(str(folder / program), *words.split())
        assert ended.stdout == ""
        assert f"{program}: the address of the fleet is from {path};" in ended.stderr
    words = {"COMP_WORDS": "fleetbus get po", "COMP_CWORD": "2"}
    ended = run(str(folder / "fleetbus"), _FLEETBUS_COMPLETE="complete_bash", **words)
    assert ended.stderr == ""


def test_the_hub_of_the_former_tools_file_is_named(home: pathlib.Path):
    path = write(home / FORMER, "masterClusterKubeConfigPath: /old/hub\n")
    write(home / "bin" / "kubectl", '#!/bin/sh\necho "$@"\n')
    (home / "bin" / "kubectl").chmod(0o700)
    program = str(pathlib.Path(sys.executable).with_name("kubectl-multicluster"))
    ended = run(program, "delete", "pods", "web", PATH=f"{home / 'bin'}:/usr/bin:/bin")
    assert ended.stdout == "delete --kubeconfig /old/hub pods web\n"
    assert f"kubectl-multicluster: the hub is from {path};" in ended.stderr


def test_verbose_says_where_every_address_is_from(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_NATS_URL", "nats://env")
    ended = CliRunner().invoke(app, ["-v", "config", "view"])
    assert "address of NATS: environment FLEETBUS_NATS_URL" in ended.stderr
    assert "address of the query API: not set" in ended.stderr
