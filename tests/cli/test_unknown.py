"""Whatever command names a cluster or resource that is not here: status 1, and a suggestion."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fleetbus.bus.connection import connected
from fleetbus_cli.main import main
from fleetbus_cli.unknown import bus_clusters, bus_resources, unknown_cluster
from support.eventually import eventually
from support.rigs.query_api import served

if TYPE_CHECKING:
    from support.rigs.fleet import Rig

    OpenRig = Callable[..., Awaitable[Rig]]


FLEETBUS = Path(sys.executable).with_name("fleetbus")


def status_of(arguments: list[str]) -> int:
    sys.argv = ["fleetbus", *arguments]
    try:
        main()
    except SystemExit as e:
        return int(e.code or 0)
    return 0


UNKNOWN: dict[str, str] = {
    "get configmaps --cluster eu2": "cluster 'eu2' is not in the fleet; did you mean 'eu1'?",
    "get configmap --cluster eu1,mars": "cluster 'mars' is not in the fleet",
    "get configmapps": "is not watched in any cluster of the fleet; did you mean 'configmaps'?",
    "describe configmaps x --cluster eu2": "did you mean 'eu1'?",
    "events --cluster eu2 --follow": "cluster 'eu2' is not in the fleet; did you mean 'eu1'?",
    "events configmapps": "is not watched in any cluster of the fleet; did you mean 'configmaps'?",
    "explain eu2 configmaps default/x": "cluster 'eu2' is not in the fleet; did you mean 'eu1'?",
    "explain eu1 configmapps default/x": "did you mean 'configmaps'?",
    "queue nobody": "controller 'nobody' has no queue",
    "clusters accept eu2": "cluster 'eu2' is not in the fleet; did you mean 'eu1'?",
    "clusters audit eu2": "no watcher has ever connected to a cluster 'eu2'; did you mean 'eu1'?",
}


@pytest.mark.slow
async def test_every_command_says_what_may_be_meant_and_ends_with_status_1(
    open_rig: OpenRig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(sys, "argv", ["fleetbus"])
    rig = await open_rig("eu1", resources=("v1/configmaps",))
    rig.start_reconciler()
    rig.start_watcher("eu1")
    await rig.synced("core/configmaps")
    await eventually(lambda: _are_known(rig.shared.nats_url))
    async with served(rig.shared.redis_url, tmp_path) as url:
        monkeypatch.setenv("FLEETBUS_API_URL", url)
        monkeypatch.setenv("FLEETBUS_NATS_URL", rig.shared.nats_url)
        monkeypatch.setenv("FLEETBUS_REDIS_URL", rig.shared.redis_url)
        for command, message in UNKNOWN.items():
            capsys.readouterr()
            if command.startswith("events"):
                status, text = await spawn(command)  # it handles signals, so it needs a process
            else:
                status = await asyncio.to_thread(status_of, command.split())
                text = capsys.readouterr().err
            assert (status, message in text) == (1, True), f"{command}: {status} {text}"


async def spawn(command: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        str(FLEETBUS), *command.split(), stdout=asyncio.subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(20):
        _, err = await process.communicate()
    return process.returncode, err.decode()


async def _are_known(nats_url: str) -> bool:
    async with connected(nats_url, name="test") as bus:
        names = await bus_clusters(bus), await bus_resources(bus)
    return names == ({"eu1"}, {"core/configmaps"})


def test_of_a_large_fleet_some_names_are_shown():
    error = unknown_cluster("mars", [f"eu{n:03}" for n in range(200)])
    assert str(error).endswith("eu009 and 190 more")
    assert str(unknown_cluster("mars", [])).endswith("known: none")
