"""`fleetbus dev fault`, against a served cluster."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from emulator.support.fault_rig import FaultRig, fault_rig
from fleetbus_devfleet.commands.app import dev
from fleetbus_devfleet.stack.plan import Layout
from fleetbus_devfleet.stack.state import StackState, owned, write_state
from fleetbus_emulator.apiserver.admin import serve_admin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from typer.testing import Result


class CommandRig:
    """A served cluster that looks like a running fleet in a folder."""

    def __init__(self, rig: FaultRig, layout: Layout) -> None:
        self.rig = rig
        self.faults = rig.faults
        self.layout = layout

    async def run(self, *words: str) -> Result:
        arguments = ["fault", *words, "--dir", str(self.layout.root)]
        return await asyncio.to_thread(CliRunner().invoke, dev, arguments)

    async def said(self, *words: str) -> str:
        result = await self.run(*words)
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncGenerator[CommandRig]:
    layout = Layout(root=tmp_path)
    with owned(layout):
        async with fault_rig() as faulty, serve_admin(faulty.servers) as url:
            state = StackState(phase="running", pid=os.getpid(), clusters=("alpha",), admin_url=url)
            write_state(layout.state, state)
            yield CommandRig(faulty, layout)


async def test_a_rule_is_added_shown_in_its_own_words_and_removed(fleet: CommandRig):
    words = ["fail", "status=429", "message=not now", "retryAfter=2s", "verb=list", "count=2"]
    output = await fleet.said("add", "alpha", *words)
    assert output == f"alpha: rule 1: {shlex.join(words)}\n"
    assert (await fleet.rig.get())[0] == 429

    lines = (await fleet.said("list")).splitlines()
    assert lines[0].split() == ["CLUSTER", "ID", "WHAT", "HITS", "STATE"]
    assert "fail status=429" in lines[1]
    (listing,) = json.loads(await fleet.said("list", "alpha", "-o", "json"))
    assert (listing["cluster"]["name"], listing["faults"][0]["hits"]) == ("alpha", 1)

    assert "had 1 hits" in await fleet.said("remove", "alpha", "1")
    assert await fleet.said("list") == "Nothing is broken in alpha.\n"


async def test_heal_mends_rules_partitions_and_stopped_servers(fleet: CommandRig):
    await fleet.said("add", "all", "stall-watch")
    assert "cut off (refuse)" in await fleet.said("partition", "alpha", "refuse")
    output = await fleet.said("list")
    assert "partition refuse" in output
    assert "stall-watch" in output
    assert await fleet.said("heal") == "Healed: nothing is broken in alpha any more.\n"
    await fleet.rig.servers.stop("alpha")
    assert "stopped" in await fleet.said("list")
    await fleet.said("heal", "alpha")
    assert (await fleet.rig.get())[0] == 200
    assert fleet.faults.list() == []


async def test_the_past_and_the_identity_of_a_cluster_can_be_changed(fleet: CommandRig):
    past = fleet.rig.cluster.resource_version
    fleet.rig.add("a")
    assert f"is at {past} again" in await fleet.said("roll-back", "alpha", str(past))
    assert not fleet.rig.has("a")
    assert f"compacted at {past}" in await fleet.said("compact", "all")
    output = await fleet.said("swap-uid", "alpha")
    assert output == f"alpha: is {fleet.rig.cluster.uid} now.\n"


async def test_a_misspelt_resource_is_a_rule_with_a_warning(fleet: CommandRig):
    warnings = {
        ("resource=pdos",): "no resource pdos is served; did you mean pods?",
        ("resource=apps/v1/deployments",): "no resource apps is served",
        ("resource=deployments", "group=batch"): "no resource deployments is served in the group",
        ("resource=pods/stauts",): "pods has no subresource stauts; did you mean status?",
        ("resource=pods", "subresource=sclae"): "pods has no subresource sclae",
        ("group=app",): "no group app is served; did you mean apps?",
    }
    for words, warning in warnings.items():
        output = await fleet.said("add", "alpha", "fail", "status=503", *words)
        assert (words, warning in output) == (words, True)
    assert "warning: alpha: rule 1: no resource pdos is served" in await fleet.said("list")
    rules = json.loads(await fleet.said("list", "-o", "json"))[0]["faults"]
    assert rules[0]["warning"].startswith("no resource pdos is served")
    for name in ("pods", "deployments.apps", "pods/log", "deployments/scale", "tokenreviews"):
        output = await fleet.said("add", "alpha", "hang", f"resource={name}")
        assert (name, "warning" in output) == (name, False)


@pytest.mark.parametrize("words", [["add", "", "hang"], ["heal", ","], ["partition", ""]])
async def test_a_command_for_no_cluster_is_refused(fleet: CommandRig, words: list[str]):
    result = await fleet.run(*words)
    assert (result.exit_code, "names no cluster" in result.output) == (2, True)


async def test_what_is_wrong_is_said_in_one_line(fleet: CommandRig):
    wrong = {
        ("add", "alpha", "explode"): (2, "action: must be one of fail,"),
        ("add", "alpha", "hang", "vreb=list"): (2, "vreb: is unknown; hang knows afterCommit,"),
        ("add", "alpha", "fail", "status=many"): (2, "status: must be a whole number"),
        ("add", "alpha", "fail", "status"): (2, "status: must be written as field=value"),
        ("add", "beta", "hang"): (1, "there is no cluster 'beta', only alpha"),
        ("remove", "alpha", "7"): (1, "cluster alpha has no rule 7"),
        ("partition", "alpha", "sideways"): (2, "how: must be one of refuse, hang,"),
        ("roll-back", "alpha", "1"): (2, "resourceVersion: cannot roll back to 1"),
    }
    for words, (status, message) in wrong.items():
        result = await fleet.run(*words)
        assert (words, result.exit_code) == (words, status)
        assert result.output.count("\n") == 1
        assert f"fleetbus dev fault: {message}" in result.output


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        ("nonsense", 2, "--url nonsense is no URL;"),
        ("http://127.0.0.1:1", 1, "the admin endpoint http://127.0.0.1:1 does not answer"),
    ],
)
def test_a_wrong_url_is_said_in_one_line(url: str, status: int, message: str):
    result = CliRunner().invoke(dev, ["fault", "heal", "--url", url])
    assert (result.exit_code, result.output.count("\n")) == (status, 1)
    assert message in result.output


async def test_another_server_than_the_admin_endpoint_is_reported(fleet: CommandRig):
    url = fleet.rig.servers.url("alpha")
    result = await asyncio.to_thread(CliRunner().invoke, dev, ["fault", "heal", "--url", url])
    assert result.exit_code == 1
    assert "HTTP 404 without a reason; is this an admin endpoint?" in result.output


@pytest.mark.parametrize(
    "command", [["up"], ["down"], ["status"], ["fault", "list"], ["fill", "--objects", "1"]]
)
def test_a_folder_that_cannot_be_used_is_said_in_one_line(command: list[str], tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    result = CliRunner().invoke(dev, [*command, "--dir", str(file)])
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert f"{file} cannot be used: Not a directory" in result.output


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--clusters", "2"], "the fleet already runs, with --clusters 1 and not 2"),
        (["--record"], "the fleet already runs, without --record"),
    ],
)
async def test_a_running_fleet_with_other_options_is_reported(
    fleet: CommandRig, option: list[str], message: str
):
    arguments = ["up", *option, "--dir", str(fleet.layout.root)]
    result = await asyncio.to_thread(CliRunner().invoke, dev, arguments)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert message in result.output


def test_the_actions_are_shown_with_fields_that_a_rule_takes():
    output = CliRunner().invoke(dev, ["fault", "actions"]).output
    assert "group-down      group=apps" in output
    assert "status=503" in output


async def test_without_a_fleet_the_commands_say_so(tmp_path: Path):
    result = await asyncio.to_thread(
        CliRunner().invoke, dev, ["fault", "list", "--dir", str(tmp_path)]
    )
    assert (result.exit_code, "No fleet runs" in result.output) == (1, True)
    nobody = ["fault", "list", "--url", "http://127.0.0.1:9"]
    result = await asyncio.to_thread(CliRunner().invoke, dev, nobody)
    assert (result.exit_code, "does not answer" in result.output) == (1, True)


def test_every_action_is_listed_with_its_fields():
    result = CliRunner().invoke(dev, ["fault", "actions"], env={"COLUMNS": "200"})
    assert "lag-watch" in result.output
    assert "duration=1s" in result.output
    assert "[type=ADDED|MODIFIED|DELETED]" in result.output
