"""The imports of light commands: people wait for each module, each time."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.full import FULL
from support.processes.programs import module

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DEVFLEET = ["fleetbus_devfleet", "fleetbus_emulator"]
"""Modules of the emulator: only the names of clusters and files."""
HUB = ["aiohttp", "asyncio", "msgspec", "structlog", "yaml"]
BUS = ["asyncio", "msgspec", "nats", "structlog"]
REDIS = ["opentelemetry", "redis"]
"""redis-py imports OpenTelemetry where it is installed, as for our tests."""
CONNECTION = ["asyncio", *REDIS, "structlog"]
"""To the store, which is asked first."""
STORE = [*CONNECTION, "msgspec"]
PLUGINS = ["fleetbus_devfleet", "fleetbus_distributor", "fleetbus_emulator"]
ALLOWED: dict[str, list[str]] = {
    "--version": PLUGINS,
    "--help": PLUGINS,  # their names and descriptions
    "get --help": [],
    "get pods": [],
    "get pods -o json --cluster eu1 -l app=web": [],
    "describe pods web": [],
    "clusters": [],
    "clusters --help": [],
    "diff --since 10m": [],
    "timeline eu1 pods prod/web": [],
    "api-resources": [],
    "kubeconfig --help": [],
    "events --help": [],
    "doctor --help": [],
    "join --help": [],
    "new --help": [],
    "queue --help": [],
    "run --help": [],
    "dev --help": DEVFLEET,
    "demo --help": DEVFLEET,
    "rehearse --help": DEVFLEET,
    "plan --help": ["fleetbus_distributor"],
    "rollout --help": ["fleetbus_distributor"],
    "rollout status web": [*HUB, "fleetbus_distributor"],
    "rollout history web": [*HUB, "fleetbus_distributor"],
    "rollout history web --revision 2": [*HUB, "fleetbus_distributor", "pydantic"],  # of a number
    "fuse show": [*HUB],
    "fuse confirm default/web": [*HUB],
    "orphans": [*CONNECTION, "yaml"],
    "orphans delete 1": [*CONNECTION, "yaml"],
    "plan web": [*CONNECTION, "fleetbus_distributor", "yaml"],
    "plan -f web.yaml": [*CONNECTION, "fleetbus_distributor", "yaml"],
    "doctor": [*HUB, "nats", "prometheus_client", *REDIS],
    "events": [*BUS],
    "queue": [*STORE],
    "queue retry web": [*STORE],
    "explain eu1 pods prod/web": [*BUS, *REDIS],
    "restore pods web": [*HUB],
}
"""The heavy modules that a command may import; nothing answers those that ask somebody."""
SIMILAR = {
    *("clusters --help", "kubeconfig --help", "events --help", "doctor --help", "join --help"),
    *("new --help", "queue --help", "demo --help", "rehearse --help", "rollout --help"),
    *("describe pods web", "get pods -o json --cluster eu1 -l app=web", "diff --since 10m"),
    *("rollout history web", "fuse confirm default/web", "orphans delete 1", "plan web"),
}
"""These import the same modules of ours as one that stays; each takes a third of a second."""
UNSET = {
    "doctor": ["asyncio", "structlog"],
    "fuse": ["asyncio", "structlog", "yaml"],
    "orphans": ["asyncio", "structlog", "yaml"],
    "plan web": ["asyncio", "fleetbus_distributor", "structlog", "yaml"],
    "plan -f absent.yaml": ["asyncio", "fleetbus_distributor", "structlog", "yaml"],
}
"""Where no address is set, those that say so; a kubeconfig is read before anybody is asked."""
NOWHERE = "127.0.0.1:1"
ENVIRONMENT = {
    "FLEETBUS_API_URL": f"http://{NOWHERE}",
    "FLEETBUS_NATS_URL": f"nats://{NOWHERE}",
    "FLEETBUS_REDIS_URL": f"redis://{NOWHERE}",
    "FLEETBUS_HUB_KUBECONFIG": "hub.yaml",
}
KUBECONFIG = {
    "clusters": [{"name": "hub", "cluster": {"server": f"https://{NOWHERE}"}}],
    "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "hub"}}],
    "users": [{"name": "hub", "user": {"token": "t"}}],
    "current-context": "hub",
}
RESOURCE = {
    "apiVersion": "fleetbus.dev/v1alpha1",
    "kind": "MultiClusterResource",
    "metadata": {"name": "web"},
    "spec": {},
}


@pytest.mark.slow
def test_a_light_command_imports_nothing_heavy(tmp_path: Path, subtests: pytest.Subtests):
    (tmp_path / "hub.yaml").write_text(json.dumps(KUBECONFIG))
    (tmp_path / "web.yaml").write_text(json.dumps(RESOURCE))
    commands = [*ALLOWED] if FULL else [words for words in ALLOWED if words not in SIMILAR]
    for words, loaded in _loaded(commands, tmp_path, ENVIRONMENT).items():
        with subtests.test(words=words):
            assert loaded == sorted(ALLOWED[words])


def test_a_command_without_an_address_says_so_before_it_imports_a_client(
    tmp_path: Path, subtests: pytest.Subtests
):
    for words, loaded in _loaded(UNSET, tmp_path, {}).items():
        with subtests.test(words=words):
            assert loaded == sorted(UNSET[words])


def _loaded(
    commands: Iterable[str], tmp_path: Path, environment: dict[str, str]
) -> dict[str, list[str]]:
    left_out = ("FLEETBUS_", "KUBE")
    clean = {name: text for name, text in os.environ.items() if not name.startswith(left_out)}
    ended = subprocess.run(
        module("scripts.loaded_by_command"),
        env={**clean, **environment, "HOME": str(tmp_path)},
        cwd=tmp_path,
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    loaded: dict[str, list[str]] = dict(map(json.loads, ended.stdout.splitlines()))
    assert {*loaded} == {*commands}
    return loaded


def test_what_was_left_out_works_when_it_is_needed():
    subprocess.run(module("scripts.left_out_imports"), check=True)
