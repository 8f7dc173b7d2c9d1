"""`fleetbus dev fill` and the route behind it, against served clusters."""

from __future__ import annotations

import asyncio
import base64
import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fleetbus_devfleet.commands.app import dev
from fleetbus_devfleet.stack.plan import Layout
from fleetbus_devfleet.stack.state import StackState, owned, write_state
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.apiserver.admin import AdminClient, AdminError, serve_admin
from fleetbus_emulator.controllers import simulate
from fleetbus_emulator.generate.endpoint import Progress, ask_to_fill, fill_routes
from support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from typer.testing import Result

NAMES = ("hub", "eu1")


class FillRig:
    """Two served clusters that look like a running fleet in a folder."""

    def __init__(self, clusters: dict[str, Cluster], url: str, folder: Path) -> None:
        self.clusters = clusters
        self.url = url
        self.folder = folder

    async def run(self, *words: str) -> Result:
        arguments = [*words, "--dir", str(self.folder)]
        return await asyncio.to_thread(CliRunner().invoke, dev, arguments)

    def created(self, cluster: str) -> list[tuple[str, str]]:
        """The objects that came since the cluster began, with their uids."""
        commits = list(self.clusters[cluster].history)[len(Cluster(cluster).history) :]
        return [(commit.name, commit.uid) for commit in commits]

    async def ask(self, cluster: str, **document: Any) -> list[Progress]:
        async with AdminClient(self.url) as admin:
            return [progress async for progress in ask_to_fill(admin, cluster, document)]


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncGenerator[FillRig]:
    layout = Layout(root=tmp_path)
    clusters = {name: Cluster(name) for name in NAMES}
    with owned(layout):
        async with (
            serve(clusters.values()) as servers,
            serve_admin(servers, more=fill_routes(servers)) as url,
        ):
            state = StackState(phase="running", pid=os.getpid(), clusters=NAMES, admin_url=url)
            write_state(layout.state, state)
            yield FillRig(clusters, url, tmp_path)


async def test_every_cluster_gets_as_many_objects_as_asked_for(fleet: FillRig):
    result = await fleet.run("fill", "--objects", "300", "--seed", "4")
    assert result.exit_code == 0, result.output
    hub, eu1 = result.output.splitlines()
    assert hub.startswith("hub: 300 objects in ")
    assert " pods, " in eu1
    assert " other types" in eu1
    assert len(fleet.created("hub")) == len(fleet.created("eu1")) == 300


async def test_the_same_seed_gives_what_it_gives_within_the_process(fleet: FillRig):
    await fleet.run("fill", "eu1", "--objects", "60", "--seed", "4")
    other = Cluster("eu1")
    async with serve([other]) as servers, serve_admin(servers, more=fill_routes(servers)) as url:
        rig = FillRig({"eu1": other}, url, fleet.folder)
        await rig.ask("eu1", objects=60, seed=4)
    assert fleet.created("eu1") == rig.created("eu1")
    assert fleet.created("hub") == []


async def test_types_the_canary_and_hostile_names_can_be_asked_for(fleet: FillRig):
    words = ["--only", "v1/secrets", "--only", "v1/configmaps", "--canary", "c-1", "--hostile"]
    result = await fleet.run("fill", "eu1", "--objects", "80", *words)
    assert result.exit_code == 0, result.output
    secrets = fleet.clusters["eu1"].list("v1/secrets")
    assert len(secrets) + len(fleet.clusters["eu1"].list("v1/configmaps")) == 80
    canaries = {base64.b64decode(s["data"]["canary"]) for s in secrets if "canary" in s["data"]}
    assert canaries == {b"c-1"}


async def test_progress_is_reported_while_it_fills(fleet: FillRig):
    reports = await fleet.ask("eu1", objects=700)
    assert [progress.objects for progress in reports[-2:]] == [700, 700]
    assert len(reports) >= 3
    assert sum(reports[-1].types.values()) == 700
    assert all(not progress.types for progress in reports[:-1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eu9", "--objects", "1"], "there is no cluster 'eu9', only hub, eu1"),
        (["eu1", "--objects", "1", "--only", "v1/pod"], "only: ['v1/pod'] are none of apps/v1/dep"),
        (["eu1", "--objects", "0"], "greater than or equal to 1"),
        (["eu1"], "Missing option '--objects'"),
    ],
)
async def test_what_cannot_be_filled_is_reported(fleet: FillRig, words: list[str], message: str):
    result = await fleet.run("fill", *words)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert fleet.created("eu1") == []


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "objects"),
        ({"objects": True}, "objects"),
        ({"objects": 1, "seed": "x"}, "seed"),
        ({"objects": 1, "seed": 2**60}, "seed"),
        ({"objects": 1, "only": "v1/pods"}, "only"),
        ({"objects": 1, "canary": 1}, "canary"),
        ({"objects": 1, "hostile": "yes"}, "hostile"),
        ({"objects": 1, "more": 1}, "more"),
    ],
)
async def test_a_wrong_field_is_named(fleet: FillRig, document: dict[str, Any], field: str):
    with pytest.raises(AdminError) as caught:
        await fleet.ask("eu1", **document)
    assert (caught.value.status, caught.value.field) == (400, field)


async def test_a_cluster_is_filled_by_one_at_a_time(fleet: FillRig):
    async with (
        AdminClient(fleet.url) as admin,
        aclosing(ask_to_fill(admin, "eu1", {"objects": 10**6})) as first,
    ):
        await anext(first)
        with pytest.raises(AdminError, match="cluster eu1 is being filled"):
            await fleet.ask("eu1", objects=1)
        await fleet.ask("hub", objects=1)
    await eventually(lambda: _is_free(fleet))  # whoever asked has gone


async def _is_free(fleet: FillRig) -> bool:
    try:
        return bool(await fleet.ask("eu1", objects=1))
    except AdminError:
        return False


async def test_a_fleet_that_runs_already_is_not_filled_by_up(fleet: FillRig):
    result = await fleet.run("up", "--objects", "10")
    assert result.exit_code == 1
    assert "already runs; fill it with `fleetbus dev fill --objects 10`" in result.output
    assert fleet.created("eu1") == []


async def test_a_seed_without_objects_is_refused(fleet: FillRig):
    result = await fleet.run("up", "--seed", "1")
    assert result.exit_code == 2
    assert "--seed chooses objects" in result.output


async def test_controllers_that_look_on_find_nothing_to_do(fleet: FillRig):
    cluster = fleet.clusters["eu1"]
    async with simulate(cluster, nodes=0) as (simulator,):
        await simulator.settled()
        initial = len(fleet.created("eu1"))
        await fleet.ask("eu1", objects=900)
        await simulator.settled()
    assert len(fleet.created("eu1")) == initial + 900


def test_nothing_is_filled_where_no_fleet_runs(tmp_path: Path):
    result = CliRunner().invoke(dev, ["fill", "--objects", "1", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "No fleet runs" in result.output
