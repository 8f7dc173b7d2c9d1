"""An emulated hub with the chart's definitions, and the command `fleetbus` against it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fleetbus_cli.app import app
from fleetbus_cli.main import main
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS

if TYPE_CHECKING:
    from fleetbus_emulator.emulated_cluster import EmulatedCluster
    from fleetbus_emulator.fleet import EmulatedFleet


@pytest.fixture
def hub(cluster: EmulatedCluster) -> EmulatedCluster:
    """The hub, with the definitions and namespaces of a release."""
    for definition in crds():
        cluster.create(CRDS, definition)
    for name in ("fleetbus-clusters", "fleetbus"):
        cluster.create("v1/namespaces", {"metadata": {"name": name}})
    return cluster


@pytest.fixture
def call(
    hub: EmulatedCluster,
    fleet: EmulatedFleet,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """The command, with the hub as its hub; status and what it prints."""
    monkeypatch.setenv("FLEETBUS_HUB_KUBECONFIG", str(fleet.kubeconfig))
    monkeypatch.setenv("FLEETBUS_HUB_CONTEXT", hub.name)

    def call_one(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fleetbus", *arguments])
        monkeypatch.setattr(app, "registered_groups", [])  # `main` registers those of devfleet
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capfd.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call_one
