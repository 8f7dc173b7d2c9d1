"""`fleetbus fuse` as a person calls it, beside a distributor that holds something."""

import asyncio
import json
import pathlib

import orjson
import pytest

from fleetbus.deletions.budget import DeletionBudget
from fleetbus_cli.app import run_command_line
from support.objects import config_map
from support.rigs.distributor import CONFIG_MAP, HUB, NOWHERE, Rig

MAPS = "v1/configmaps"
PROD = {"clusterSelector": {"matchLabels": {"tier": "prod"}}}


class Desk:
    """The command line, pointed at the rig's hub and store."""

    def __init__(self, rig: Rig, folder: pathlib.Path, url: str) -> None:
        self.url = url
        self._file = folder / "hub.yaml"
        self._file.write_bytes(orjson.dumps(rig.servers.kubeconfig()))

    async def __call__(self, *words: str) -> int:
        hub = ("--hub-kubeconfig", str(self._file), "--hub-context", HUB)
        arguments = ["fleetbus", "fuse", *words, *hub, "--redis-url", self.url]
        return await asyncio.to_thread(self._run, arguments)

    def _run(self, arguments: list[str]) -> int:
        # In a thread, because the servers need this loop; so no signals, unlike `status_of`.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", arguments)
            with pytest.raises(SystemExit) as ended:
                run_command_line()
        return int(ended.value.code or 0)


@pytest.fixture
def desk(rig: Rig, tmp_path: pathlib.Path, valkey_url: str) -> Desk:
    return Desk(rig, tmp_path, valkey_url)


async def hold(rig: Rig, *names: str, **fuse: int) -> None:
    """Each of these was placed on t1, t2 and the hub; then t2 and the hub were relabelled."""
    for cluster in ("t1", "t2", HUB):
        rig.fleet.join(cluster, tier="prod")
    for name in names:
        rig.create(name, template=config_map(name), placement=PROD, policy={"fuse": fuse})
        await rig.reconcile(name)
    for cluster in ("t2", HUB):
        rig.fleet.join(cluster, tier="prd")
    for name in names:
        await rig.reconcile(name)


async def test_d8_what_is_held_is_listed_and_confirmed(
    rig: Rig, desk: Desk, capsys: pytest.CaptureFixture[str]
):
    assert await desk() == 0
    assert "0 of 50 allowed in 10 min.\nNo deletions are held." in capsys.readouterr().out
    await hold(rig, "a", "b")
    assert await desk() == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["default", "a", "2", "t2,t4", "DeletionFuse", rig.plan_hash("a")] in lines
    assert await desk("confirm", "default/a") == 0
    assert f"confirmed default/a: 2 objects on 2 clusters, plan {rig.plan_hash('a')}" in (
        capsys.readouterr().out
    )
    assert await desk("-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["budget"] == {"used": 0, "allowed": 50, "windowSeconds": 600}
    first, second = answer["held"]
    assert (first["name"], first["confirmed"], second["confirmed"]) == ("a", True, False)
    assert second["clusters"] == ["t2", "t4"]
    assert second["planHash"] in second["message"]
    await rig.until(lambda: not rig.has("t2", MAPS, "a"), "a")
    await rig.reconcile("b")
    assert rig.has("t2", MAPS, "b")


async def test_d8_releasing_the_fleets_budget_confirms_what_it_holds_and_nothing_else(
    rig: Rig, desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus_distributor.plan.fleet_fuse.LEAST", 3)
    monkeypatch.setattr("fleetbus.deletions.budget.LEAST", 3)
    await hold(rig, "a", "b", clusters=9, percent=100)
    await hold(rig, "c", clusters=2)
    assert rig.resource("b")["status"]["held"]["reason"] == "FleetBudget"
    assert not rig.has("t2", MAPS, "a")
    assert await desk() == 0
    output = capsys.readouterr().out
    assert "2 of 3 allowed" in output
    assert "`fleetbus fuse release`" in output
    assert await desk("release") == 0
    assert "confirmed default/b" in capsys.readouterr().out
    assert await DeletionBudget(rig.redis).used() == 0
    await rig.until(lambda: not rig.has("t2", MAPS, "b"), "b")
    await rig.reconcile("c")
    assert rig.has("t2", MAPS, "c")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["confirm", "default/aa"], 1, "no MultiClusterResource 'default/aa'; did you mean 'de"),
        (["confirm", "default/free"], 1, "default/free has no held deletions"),
        (["confirm", "a"], 2, "'a' is not NAMESPACE/NAME"),
        (["confirm"], 2, "nothing to confirm"),
        (["release", "default/a"], 2, "takes no names"),
        (["melt"], 2, "neither confirm nor release"),
        (["-o", "yaml"], 2, "--output 'yaml' is not one of table, json"),
    ],
)
async def test_what_cannot_be_done_is_said(
    rig: Rig,
    desk: Desk,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    message: str,
):
    await hold(rig, "a")
    rig.create("free", template=CONFIG_MAP)
    assert await desk(*words) == status
    assert message in capsys.readouterr().err
    await rig.reconcile("a")
    assert rig.has("t2", MAPS, "a")


async def test_what_is_held_is_shown_while_the_store_is_away(
    rig: Rig, desk: Desk, capsys: pytest.CaptureFixture[str]
):
    await hold(rig, "a")
    desk.url = NOWHERE
    assert await desk() == 0
    captured = capsys.readouterr()
    assert "unknown of 50 allowed" in captured.out
    assert rig.plan_hash("a") in captured.out
    assert "does not answer" in captured.err
    assert await desk("release") == 1


async def test_a_hub_that_refuses_is_one_line(
    rig: Rig, desk: Desk, capsys: pytest.CaptureFixture[str]
):
    await rig.servers.stop(HUB)
    assert await desk() == 1
    assert capsys.readouterr().err.startswith("fleetbus: hub: no answer from the API server: ")
