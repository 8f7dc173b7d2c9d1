"""`fleetbus rollout` as a person calls it, beside a distributor."""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoints, entry_points
from typing import Any

import orjson
import pytest

from fleetbus_cli.app import run_command_line
from fleetbus_distributor.rollout.history import RESOURCE as REVISIONS
from fleetbus_emulator.apiserver import Fail
from support.objects import deployment
from support.rigs.distributor import CONFIG_MAP, HUB, Rig

ROLLOUT = {"waves": [{"name": "canary", "clusters": [{"name": "t1"}]}], "gates": [{"name": "t"}]}
EVERYWHERE = {"clusters": [{"name": name} for name in ("t1", "t2", "t4")]}


@dataclass
class Desk:
    """The command line, pointed at the rig's hub."""

    file: pathlib.Path
    capsys: pytest.CaptureFixture[str]

    async def __call__(self, verb: str, *words: str) -> tuple[int, str]:
        hub = ("--hub-kubeconfig", str(self.file), "--hub-context", HUB)
        self.capsys.readouterr()
        status = await asyncio.to_thread(self._run, ["fleetbus", "rollout", verb, *words, *hub])
        captured = self.capsys.readouterr()
        return status, captured.out + captured.err

    def _run(self, arguments: list[str]) -> int:
        # In a thread, because the servers need this loop.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", arguments)
            with pytest.raises(SystemExit) as ended:
                run_command_line()
        return int(ended.value.code or 0)


@pytest.fixture
def desk(rig: Rig, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    if "rollout" not in entry_points(group="fleetbus.commands").names:
        pytest.skip("the environment is older than the command: run `make install`")
    file = tmp_path / "hub.yaml"
    file.write_bytes(orjson.dumps(rig.servers.kubeconfig()))
    return Desk(file, capsys)


def template(value: str) -> dict[str, Any]:
    return {**CONFIG_MAP, "data": {"k": value}}


def value(rig: Rig, cluster: str) -> str:
    return rig.get(cluster, "v1/configmaps", "m")["data"]["k"]


async def rounds(rig: Rig, count: int = 4) -> None:
    for _ in range(count):
        await rig.reconcile()


async def two_revisions(rig: Rig) -> None:
    rig.create(template=template("v1"), vars={"a": 1}, placement=EVERYWHERE, rollout={})
    await rounds(rig)
    rig.edit(templates=[template("v2")], template=None, vars=None, rollout=ROLLOUT)
    await rounds(rig)
    assert [value(rig, name) for name in ("t1", "t2", "t4")] == ["v2", "v1", "v1"]


@pytest.mark.slow
async def test_status_shows_the_waves_and_what_they_wait_for(rig: Rig, desk: Desk):
    await two_revisions(rig)
    status, output = await desk("status", "x")
    assert status == 0
    assert "default/x: revision 2, Progressing: wave canary: gate t: no vote yet on " in output
    lines = {line.split()[0]: line.split() for line in output.splitlines() if line.strip()}
    assert lines["canary"][1:4] == ["Open", "1", "1"]
    assert lines["remaining"][1:4] == ["Waiting", "2", "0"]
    assert "2 cluster(s) with revision 1: t2, t4" in output
    status, output = await desk("status", "default/x", "-o", "json")
    assert json.loads(output) == rig.resource()["status"]["rollout"]
    status, output = await desk("status", "x", "--wait", "10ms")
    assert status == 1


async def test_undo_is_an_edit_of_the_spec(rig: Rig, desk: Desk):
    await two_revisions(rig)
    status, output = await desk("undo", "x")
    assert (status, output) == (0, "default/x: edited back to revision 1\n")
    spec = rig.resource()["spec"]
    assert (spec["template"], spec["vars"]) == (template("v1"), {"a": 1})
    assert "templates" not in spec
    assert spec["rollout"]["gates"] == [{"name": "t"}]
    await rounds(rig)
    assert [value(rig, name) for name in ("t1", "t2", "t4")] == ["v1", "v1", "v1"]
    assert rig.resource()["status"]["rollout"]["revision"] == 3
    status, output = await desk("history", "x", "-o", "json")
    answer = json.loads(output)
    assert answer["current"] == 3
    assert [(revision["revision"], revision["clusters"]) for revision in answer["revisions"]] == [
        (2, []),
        (3, ["t1", "t2", "t4"]),
    ]
    status, output = await desk("history", "x")
    assert "3 (newest)" in output
    assert "ConfigMap/m" in output
    assert (await desk("undo", "x", "--to-revision", "2"))[0] == 0
    await rounds(rig)
    assert value(rig, "t1") == "v2"


async def test_a_revision_is_shown_with_what_it_changed_and_no_secret(rig: Rig, desk: Desk):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": dict(CONFIG_MAP["metadata"])}
    patch = {"op": "add", "path": "/stringData/b", "value": "canary-4"}
    rig.create(
        templates=[template("v1"), {**secret, "stringData": {"a": "canary-1"}}],
        vars={"password": "canary-2", "gone": "x"},
        placement=EVERYWHERE,
        rollout={},
    )
    await rounds(rig)
    rig.edit(
        templates=[template("v2"), {**secret, "stringData": {"a": "canary-3"}}],
        vars={"password": "canary-2"},
        customize={"clusters": [{"name": "t1", "action": [patch]}]},
    )
    await rounds(rig)
    status, first = await desk("history", "x", "--revision", "1")
    assert status == 0
    assert first.startswith("default/x: revision 1")
    assert " k: v1\n" in first
    assert first.endswith("No earlier revision is kept.\n")
    status, second = await desk("history", "x", "--revision", "2")
    content, _, changed = second.partition("Since revision 1:\n")
    assert " k: v2\n" in content
    signs = [line.strip() for line in changed.splitlines() if line[:2] == "  " != line[2:4]]
    assert signs == ["~ ConfigMap default/m", "~ Secret default/m", "~ vars", "+ customize"]
    assert "      -  k: v1\n      +  k: v2\n" in changed
    assert "      +  a: <redacted, changed>\n" in changed
    answer = json.loads((await desk("history", "x", "--revision", "2", "-o", "json"))[1])
    assert (answer["revision"], answer["since"], len(answer["changes"])) == (2, 1, 4)
    assert answer["content"]["vars"] == {"password": "<redacted>"}
    assert "canary-" not in f"{first}{second}{json.dumps(answer)}"


async def test_pause_and_resume_edit_the_spec(rig: Rig, desk: Desk):
    await two_revisions(rig)
    assert (await desk("pause", "x", "-n", "default"))[1] == "default/x: paused\n"
    assert rig.resource()["spec"]["rollout"]["paused"] is True
    await rounds(rig)
    assert (await desk("status", "x"))[1].startswith("default/x: revision 2, Paused")
    assert (await desk("pause", "x"))[1] == "default/x: already paused\n"
    assert (await desk("resume", "x"))[1] == "default/x: resumed\n"
    await rounds(rig)
    assert (await desk("status", "x"))[1].startswith("default/x: revision 2, Progressing")


@pytest.mark.slow
async def test_a_status_that_is_written_meanwhile_refuses_no_edit(rig: Rig, desk: Desk):
    await two_revisions(rig)
    for verb, method in (("pause", "patch"), ("resume", "patch"), ("undo", "update")):
        rig.hub.faults.add(Fail(409), verb=method, resource="multiclusterresources", count=2)
        status, output = await desk(verb, "x")
        assert status == 0, output
    rig.hub.faults.add(Fail(409), verb="patch", resource="multiclusterresources", count=50)
    status, output = await desk("pause", "x")
    assert status == 1
    assert "Conflict" in output


async def test_bad_input_says_what_is_wrong(rig: Rig, desk: Desk):
    other = {**CONFIG_MAP, "metadata": {"name": "other", "namespace": "default"}}
    rig.create("plain", template=other, placement=EVERYWHERE)
    await rig.reconcile("plain")
    await two_revisions(rig)
    for words, status, message in (
        (("status", "y"), 1, "namespace default has no MultiClusterResource y; known: plain, x"),
        (("status", "a/b/c"), 2, "a/b/c is neither NAME nor NAMESPACE/NAME"),
        (("status", "x", "--wait", "soon"), 2, "--wait 'soon' is not a duration"),
        (("status", "plain"), 2, "default/plain has no spec.rollout: add `rollout: {}`"),
        (("pause", "plain"), 2, "default/plain has no spec.rollout"),
        (("undo", "plain"), 2, "default/plain has no spec.rollout"),
        (("undo", "x", "--to-revision", "9"), 2, "revision 9 is not kept; kept: 1, 2"),
        (("history", "x", "--revision", "7"), 2, "revision 7 is not kept; kept: 1, 2"),
        (("undo", "x", "--to-revision", "2"), 2, "revision 2 is the newest one already"),
    ):
        assert (outcome := await desk(*words))[0] == status, words
        assert message in outcome[1], words
    for revision in rig.hub.list(REVISIONS):
        rig.hub.delete(REVISIONS, "default", revision["metadata"]["name"])
    assert "revision 1 is not kept; kept: none" in (await desk("undo", "x"))[1]


async def test_before_the_distributor_has_begun_it_says_so(rig: Rig, desk: Desk):
    rig.create(template=template("v1"), placement=EVERYWHERE, rollout={})
    status, output = await desk("status", "x")
    assert status == 1
    assert "has not begun the rollout of default/x; is it running?" in output


def test_without_the_package_the_command_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def nothing(group: str) -> EntryPoints:
        return entry_points(group=f"nothing of {group}")

    monkeypatch.setattr("fleetbus_cli.app.entry_points", nothing)
    monkeypatch.setattr(sys, "argv", ["fleetbus", "rollout", "status", "x"])
    with pytest.raises(SystemExit) as ended:
        run_command_line()
    assert ended.value.code == 2
    assert "pip install 'fleetbus-distributor'" in capsys.readouterr().err


async def test_history_shows_why_a_revision_was_made_and_its_images(rig: Rig, desk: Desk):
    rig.create(template=deployment(image="nginx:1"), placement=EVERYWHERE, rollout={})
    await rounds(rig)
    rig.annotate("kubernetes.io/change-cause", "security update")
    rig.edit(template=deployment(image="nginx:2"))
    await rounds(rig)
    revisions = json.loads((await desk("history", "x", "-o", "json"))[1])["revisions"]
    assert [revision["images"] for revision in revisions] == [["nginx:1"], ["nginx:2"]]
    assert revisions[1]["cause"] == "security update"
    table = (await desk("history", "x"))[1]
    assert "CHANGE-CAUSE" in table
    assert "security update" in table
    assert "nginx:2" in table
