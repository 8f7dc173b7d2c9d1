"""The imports of light commands: people wait for each module, each time."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.processes.programs import module

if TYPE_CHECKING:
    from pathlib import Path

DEVFLEET = ["fleetbus_devfleet", "fleetbus_emulator"]
"""Of the emulator only the names of clusters and files."""
HUB = ["aiohttp", "asyncio", "msgspec", "structlog", "yaml"]
BUS = ["asyncio", "msgspec", "nats", "structlog"]
REDIS = ["opentelemetry", "redis"]
"""redis-py imports OpenTelemetry where it is installed, as for our tests."""
STORE = ["asyncio", "msgspec", *REDIS, "structlog"]
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
    "fuse show": [*HUB, *REDIS],
    "events": [*BUS],
    "queue": [*STORE],
    "queue retry web": [*STORE],
    "explain eu1 pods prod/web": [*BUS, *REDIS],
    "restore pods web": [*HUB],
}
"""The heavy modules that a command may import; nothing answers those that ask somebody."""
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


@pytest.mark.parametrize("words", ALLOWED)
def test_a_light_command_imports_nothing_heavy(words: str, tmp_path: Path):
    clean = {name: text for name, text in os.environ.items() if not name.startswith("FLEETBUS_")}
    (tmp_path / "hub.yaml").write_text(json.dumps(KUBECONFIG))
    ended = subprocess.run(
        [*module("scripts.loaded_by_command"), *words.split()],
        env={**clean, **ENVIRONMENT, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = json.loads(ended.stderr.splitlines()[-1])
    assert loaded == sorted(ALLOWED[words]), ended.stderr


def test_what_was_left_out_works_when_it_is_needed():
    subprocess.run(module("scripts.left_out_imports"), check=True)
