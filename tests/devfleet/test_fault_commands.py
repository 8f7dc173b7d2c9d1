"""`fleetbus dev fault`, against a served cluster."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from eventually import eventually
from processes import is_alive
from typer.testing import CliRunner

from fleetbus_devfleet.apiserver.admin import AdminClient, serve_admin
from fleetbus_devfleet.apiserver.truth import commit_from_json
from fleetbus_devfleet.commands import dev
from fleetbus_devfleet.plan import Layout, admin_port_file
from fleetbus_devfleet.state import StackState, owned, write_state

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from fault_rig import FaultRig
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
async def fleet(faulty: FaultRig, tmp_path: Path) -> AsyncGenerator[CommandRig]:
    layout = Layout(root=tmp_path)
    with owned(layout):
        async with serve_admin(faulty.servers) as url:
            state = StackState(phase="running", pid=os.getpid(), clusters=("alpha",), admin_url=url)
            write_state(layout.state, state)
            yield CommandRig(faulty, layout)


async def test_a_rule_is_added_shown_in_its_own_words_and_removed(fleet: CommandRig):
    words = ["fail", "status=429", "message=not now", "retryAfter=2s", "verb=list", "count=2"]
    said = await fleet.said("add", "alpha", *words)
    assert said == f"alpha: rule 1: {shlex.join(words)}\n"
    assert (await fleet.rig.get())[0] == 429

    shown = (await fleet.said("list")).splitlines()
    assert shown[0].split() == ["CLUSTER", "ID", "WHAT", "HITS", "STATE"]
    assert "fail status=429" in shown[1]
    (told,) = json.loads(await fleet.said("list", "alpha", "-o", "json"))
    assert (told["cluster"]["name"], told["faults"][0]["hits"]) == ("alpha", 1)

    assert "had 1 hits" in await fleet.said("remove", "alpha", "1")
    assert await fleet.said("list") == "Nothing is broken in alpha.\n"


async def test_heal_mends_rules_partitions_and_stopped_servers(fleet: CommandRig):
    await fleet.said("add", "all", "stall-watch")
    assert "cut off (refuse)" in await fleet.said("partition", "alpha", "refuse")
    shown = await fleet.said("list")
    assert "partition refuse" in shown
    assert "stall-watch" in shown
    assert await fleet.said("heal") == "Nothing is broken in alpha.\n"
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
    said = await fleet.said("swap-uid", "alpha")
    assert said == f"alpha: is {fleet.rig.cluster.uid} now.\n"


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


async def test_the_clusters_as_a_process_tell_their_endpoint_and_record_the_truth(tmp_path: Path):
    command = [sys.executable, "-m", "fleetbus_devfleet.main", "apiserver"]
    command += ["--clusters", "alpha,beta", "--dir", str(tmp_path), "--record"]
    limited = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", *command]
    process = subprocess.Popen(limited, stdout=subprocess.PIPE, text=True)
    layout = Layout(root=tmp_path)
    try:
        await eventually(layout.kubeconfig.exists)
        files, most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert files == most, "each watch of each cluster needs one"
        url = f"http://127.0.0.1:{admin_port_file(layout).read_text()}"
        async with AdminClient(url) as admin:
            assert [info.name for info in await admin.clusters()] == ["alpha", "beta"]
            told = [commit async for commit in admin.truth("beta")]
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.to_thread(process.communicate)
    assert said == f"admin endpoint: {url}\n"
    assert process.returncode == 0
    assert not is_alive(process.pid)
    written = (layout.truth / "beta.jsonl").read_bytes().splitlines()
    assert [commit_from_json(line) for line in written][: len(told)] == told
