"""Which fleet answers is said: `fleetbus config view`, and lines on stderr."""

from __future__ import annotations

import json
import os
import pathlib

import pytest
from typer.testing import CliRunner

from fleetbus.cli.app import app
from fleetbus.cli.config.origins import note_origins
from fleetbus.cli.target import ApiFlags, resolve_target


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


def shown(*arguments: str) -> dict[str, tuple[str, str]]:
    ended = CliRunner().invoke(app, ["config", "view", "-o", "json", *arguments])
    assert ended.exit_code == 0, ended.output
    return {one["name"]: (one["value"], one["origin"]) for one in json.loads(ended.stdout)}


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


def test_the_former_tools_file_never_wins_silently(
    home: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    file = write(home / ".multi-cluster-operator" / "config", "server: 8888\n")
    note_origins(verbose=False)
    for _ in range(2):
        assert ApiFlags().resolve().api_url == "http://127.0.0.1:8888"
    assert capsys.readouterr().err.count(f"is from {file}") == 1
    assert ApiFlags(url="http://flag").resolve().api_url == "http://flag"
    resolve_target(nats_url="nats://only")  # of a command that asks no query API
    write(home / ".fleetbus" / "config.yaml", "api_url: http://config\n")
    assert ApiFlags().resolve().api_url == "http://config"
    assert capsys.readouterr().err == ""


def test_verbose_says_where_every_address_is_from(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_NATS_URL", "nats://env")
    ended = CliRunner().invoke(app, ["-v", "config", "view"])
    assert "address of NATS: environment FLEETBUS_NATS_URL" in ended.stderr
    assert "address of the query API: not set" in ended.stderr
