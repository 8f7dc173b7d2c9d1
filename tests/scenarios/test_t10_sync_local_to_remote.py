"""T10: the example sync-local-to-remote, from the hub to its members."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import yaml

from fleetbus.controller.load import load_controllers
from support.eventually import eventually, never
from support.full import FULL
from support.rigs.fleet import Rig
from support.rigs.scenario import MAPS, QUIET, WITHIN, Scenario, access, scenario

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "sync-local-to-remote" / "controller.py"
LABEL = {"example.io/propagate": "true"}
AFTER_RETURN = timedelta(seconds=30)
NAME = "example-configmap"


def hello(rig: Rig, cluster: str, name: str = NAME) -> str | None:
    config_map = rig.clusters[cluster].get(MAPS, "default", name)
    return config_map["data"]["hello"] if config_map and "data" in config_map else None


def make(rig: Rig, cluster: str, value: str, name: str = NAME, **labels: str) -> None:
    metadata = {"name": name, "labels": labels or LABEL}
    body: dict[str, Any] = {"metadata": metadata, "data": {"hello": value}}
    rig.clusters[cluster].create(MAPS, body, "default")


def say(rig: Rig, cluster: str, value: str) -> None:
    rig.clusters[cluster].patch(MAPS, "default", NAME, {"data": {"hello": value}})


async def received(rig: Rig, value: str | None, *clusters: str, within: timedelta = WITHIN) -> None:
    await eventually(lambda: {hello(rig, cluster) for cluster in clusters} == {value}, within)


@pytest.mark.full  # its example has a test that always runs
async def test_t10_copies_follow_the_hub_and_nothing_else_does(
    open_rig: Callable[..., Awaitable[Rig]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    monkeypatch.setenv("FLEETBUS_EXAMPLE_HUB", "a")
    monkeypatch.setenv("FLEETBUS_EXAMPLE_AGAIN_SECONDS", "15" if FULL else "0.5")
    rig = await open_rig("a", "b", "c", "d")
    members = tmp_path / "members"
    members.mkdir()
    join(rig, members, "a", "b", "c")
    async with scenario(rig) as s:
        s.use({"type": "kubeconfig", "paths": [str(members)]})
        rig.start_reconciler(*load_controllers([str(EXAMPLE)]))
        for name in ("a", "b", "c"):
            rig.start_watcher(name)
        await s.synced("a", "b", "c")
        await copies_follow(rig)
        await outages_and_newcomers(rig, members)
        await deletions(rig, s)


async def copies_follow(rig: Rig) -> None:
    make(rig, "a", "world")
    make(rig, "a", "stays here", "plain", other="label")
    await received(rig, "world", "b", "c")
    say(rig, "a", "brian")
    await received(rig, "brian", "b", "c")
    say(rig, "b", "hopper")
    await received(rig, "brian", "b")  # reverted
    rig.clusters["b"].delete(MAPS, "default", NAME)
    await received(rig, "brian", "b")  # made again
    make(rig, "b", "nobody's", "stray")
    await eventually(lambda: hello(rig, "b", "stray") is None, WITHIN)
    assert hello(rig, "b", "plain") is None


async def outages_and_newcomers(rig: Rig, members: pathlib.Path) -> None:
    await rig.servers.stop("c")
    say(rig, "a", "grace")
    await received(rig, "grace", "b")
    await rig.servers.start("c")
    await received(rig, "grace", "c", within=AFTER_RETURN)
    join(rig, members, "a", "b", "c", "d")
    await received(rig, "grace", "d", within=max(WITHIN, timedelta(seconds=10)))


async def deletions(rig: Rig, s: Scenario) -> None:
    rig.clusters["a"].patch(
        MAPS, "default", NAME, {"metadata": {"labels": {**dict.fromkeys(LABEL)}}}
    )
    await received(rig, None, "b", "c", "d")  # the label is gone
    rig.clusters["a"].patch(MAPS, "default", NAME, {"metadata": {"labels": LABEL}})
    await received(rig, "grace", "b", "c", "d")
    rig.clusters["a"].delete(MAPS, "default", NAME)
    await received(rig, None, "b", "c", "d")
    await rig.quiet("sync-local-to-remote")
    runs = len(s.lines("reconcile_failed") + s.lines("reconcile_waits"))
    await never(lambda: s.lines("reconcile_failed")[runs:], AFTER_RETURN if FULL else QUIET)
    assert not [
        write for write in s.writes() if write.startswith("a:")
    ]  # nothing is written to the hub


def join(rig: Rig, folder: pathlib.Path, *names: str) -> None:
    (folder / "kubeconfig.yaml").write_text(yaml.safe_dump(access(rig, *names)))
