"""Runs the example: a canary, a vote, a failed revision, and back."""

import asyncio
import json
import pathlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import yaml

from fleetbus.ownership import MULTI_CLUSTER_RESOURCES as RESOURCE
from fleetbus_distributor.main import run as run_distributor
from fleetbus_distributor.settings import DistributorSettings
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.rigs.fleet import Rig

HERE = pathlib.Path(__file__).parent
WITHIN = timedelta(seconds=20)  # less than the 30 s after which a vote is found without its event
HUB = "hub"
MAPS = "v1/configmaps"


async def start(open_rig: Callable[..., Awaitable[Rig]]) -> Rig:
    rig = await open_rig("eu1", "us1", HUB, hub=HUB)
    hub = rig.clusters[HUB]
    for definition in crds():
        hub.create(CRDS, definition)
    for name in rig.clusters:
        watched = (*rig.resources, RESOURCE) if name == HUB else rig.resources
        rig.start_watcher(name, resources=watched)
    rig.start_reconciler()
    rig.start("distributor", run_distributor(rig.shared, DistributorSettings()))
    hub.create(RESOURCE, yaml.safe_load((HERE / "flags.yaml").read_text(encoding="utf-8")))
    return rig


def flags(rig: Rig) -> list[str]:
    """The flag on eu1 and on us1; "" where there is none."""
    config_maps = [rig.clusters[name].get(MAPS, "default", "flags") for name in ("eu1", "us1")]
    return [config_map["data"]["checkout"] if config_map else "" for config_map in config_maps]


def rollout(rig: Rig) -> dict[str, Any]:
    resource = rig.clusters[HUB].get(RESOURCE, "default", "flags") or {}
    return resource.get("status", {}).get("rollout", {"phase": "", "revision": 0})


async def vote(rig: Rig, *words: str) -> None:
    subject = f"{rollout(rig)['votes']}.canary.smoke-test"
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, HERE / "vote.py", subject, *words],
        env={"NATS_URL": str(rig.shared.nats_url)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def published(rig: Rig, last: str) -> list[str]:
    """Events of the rollout that `events.py` prints, until the last one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        HERE / "events.py",
        "fleetbus.distribution.default.flags._fleet.*",
        env={"NATS_URL": str(rig.shared.nats_url)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(WITHIN.total_seconds()):
            while not lines or not lines[-1].startswith(last):
                lines.append((await process.stdout.readline()).decode().strip())
    finally:
        process.kill()
        await process.communicate()
    return [" ".join(line.split()[:3]) for line in lines]


def edit(rig: Rig, value: str) -> None:
    patch = {"spec": {"vars": {"checkout": value}}}
    rig.clusters[HUB].patch(RESOURCE, "default", "flags", patch)


@pytest.mark.slow
async def test_the_example_rolls_out_behind_a_vote(open_rig: Callable[..., Awaitable[Rig]]):
    rig = await start(open_rig)
    await eventually(lambda: flags(rig) == ["old", ""], within=WITHIN)
    await eventually(lambda: "no vote yet on" in json.dumps(rollout(rig)), within=WITHIN)
    await vote(rig, "pass")
    await eventually(lambda: flags(rig) == ["old", "old"], within=WITHIN)
    await eventually(lambda: rollout(rig)["phase"] == "Complete", within=WITHIN)
    assert await published(rig, "complete") == [
        "wave-open default/flags canary",
        "wave-passed default/flags canary",
        "wave-open default/flags remaining",
        "wave-passed default/flags remaining",
        "complete default/flags -",
    ]

    edit(rig, "new")
    await eventually(lambda: flags(rig) == ["new", "old"], within=WITHIN)
    await eventually(lambda: rollout(rig)["revision"] == 2, within=WITHIN)
    await vote(rig, "fail", "carts are empty")
    await eventually(lambda: rollout(rig)["phase"] == "Failed", within=WITHIN)
    assert rollout(rig)["message"] == "wave canary: gate smoke-test: carts are empty"
    assert flags(rig) == ["new", "old"]

    edit(rig, "old")
    await eventually(lambda: flags(rig) == ["old", "old"], within=WITHIN)
    await eventually(lambda: rollout(rig)["revision"] == 3, within=WITHIN)
    assert "wave-failed default/flags canary" in await published(rig, "undone")
