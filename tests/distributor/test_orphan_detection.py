"""Objects that carry our mark and that no intent names are reported, and left (rule D7)."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson
import pytest

from fleetbus.clusters.providers.cluster import CLUSTERS
from fleetbus.errors import ConfigError
from fleetbus.fleet.orphans import NotAnOrphan, Orphan, delete_orphan, find_orphans
from fleetbus.kube.client import KubeClient
from fleetbus.ownership import (
    MULTI_CLUSTER_RESOURCES,
    OWNER_ANNOTATION,
    PAUSE_ANNOTATION,
    PROTECT_ANNOTATION,
    owner_of,
)
from fleetbus_cli.deletions.orphans import run_orphans
from support.processes.in_process_commands import given_back
from support.rigs.agents import agent_rig
from support.rigs.distributor import HUB, Rig
from support.rigs.orphans import MAPS, restored, show, template
from support.stores.snapshot import Snapshot

FORGOTTEN = ["ConfigMap default/b of cluster t1"]


def hub_of(rig: Rig) -> KubeClient:
    return rig.fleet.cluster(HUB).live


async def found_in(rig: Rig, snapshot: Snapshot) -> list[Orphan]:
    return await find_orphans(snapshot.reader, hub_of(rig), ["t1"])


async def the_orphan(rig: Rig) -> Orphan:
    await restored(rig)
    (orphan,) = await found_in(rig, await show(rig, "t1"))
    return orphan


async def delete(rig: Rig, orphan: Orphan) -> bool:
    client = rig.fleet.cluster(orphan.cluster).live
    return await delete_orphan(orphan, client=client, hub=hub_of(rig))


async def test_d7_what_a_restored_hub_forgot_is_found_and_nothing_else(rig: Rig):
    await restored(rig)
    rig.clusters["t1"].create(MAPS, template("stranger"))
    snapshot = await show(rig, "t1")
    assert list(map(str, await found_in(rig, snapshot))) == FORGOTTEN
    assert rig.has("t1", MAPS, "b")


async def test_d7_what_a_removed_finalizer_left_is_found_and_adopted_by_its_successor(rig: Rig):
    rig.create(templates=[template("b")], placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    uid = rig.get("t1", MAPS, "b")["metadata"]["uid"]
    rig.hub.patch(MULTI_CLUSTER_RESOURCES, "default", "x", {"metadata": {"finalizers": []}})
    rig.delete()
    snapshot = await show(rig, "t1")
    assert list(map(str, await found_in(rig, snapshot))) == FORGOTTEN
    rig.create(templates=[template("b")], placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    assert rig.get("t1", MAPS, "b")["metadata"]["uid"] == uid
    await show(rig, "t1")
    assert await found_in(rig, snapshot) == []


async def test_d7_an_orphan_that_is_rendered_again_is_none(rig: Rig):
    orphan = await the_orphan(rig)
    rig.edit(templates=[template("a"), template("b")])
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    with pytest.raises(NotAnOrphan, match="a MultiClusterResource names it"):
        await delete(rig, orphan)


async def test_d7_of_an_intent_that_cannot_be_read_nothing_is_concluded(rig: Rig):
    await restored(rig)
    snapshot = await show(rig, "t1")
    resource = rig.resource()
    resource["status"]["intent"]["clusters"][0]["objects"] = [7]
    rig.hub.update_status(MULTI_CLUSTER_RESOURCES, resource)
    assert await found_in(rig, snapshot) == []


async def test_d7_an_orphan_is_deleted_by_its_uid(rig: Rig):
    orphan = await the_orphan(rig)
    assert await delete(rig, orphan)
    assert not rig.has("t1", MAPS, "b")
    assert rig.has("t1", MAPS, "a")
    assert not await delete(rig, orphan)


def replace_it(rig: Rig) -> None:
    live = rig.get("t1", MAPS, "b")
    rig.clusters["t1"].delete(MAPS, "default", "b")
    for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        live["metadata"].pop(field, None)
    rig.clusters["t1"].create(MAPS, live)


def annotate(rig: Rig, **annotations: str | None) -> None:
    rig.clusters["t1"].patch(MAPS, "default", "b", {"metadata": {"annotations": annotations}})


def mark_for_another(rig: Rig) -> None:
    owner = owner_of(rig.get("t1", MAPS, "b"))
    assert owner is not None
    annotate(rig, **{OWNER_ANNOTATION: owner.on("t2", "other").to_json()})


CHANGES: dict[str, Callable[[Rig], object]] = {
    "it was replaced by another object": replace_it,
    "it is protected": lambda rig: annotate(rig, **{PROTECT_ANNOTATION: "true"}),
    "it is paused": lambda rig: annotate(rig, **{PAUSE_ANNOTATION: "true"}),
    "its marks are not ours": lambda rig: annotate(rig, **{OWNER_ANNOTATION: None}),
    "its mark is for cluster 't2'": mark_for_another,
    "another cluster answers": lambda rig: rig.clusters["t1"].swap_uid(),
}


@pytest.mark.parametrize("why", CHANGES)
async def test_d7_what_is_no_orphan_any_more_is_not_deleted(rig: Rig, why: str):
    orphan = await the_orphan(rig)
    CHANGES[why](rig)
    with pytest.raises(Exception, match=why):
        await delete(rig, orphan)
    assert rig.has("t1", MAPS, "b")


class Command:
    """`fleetbus orphans`, with what it has printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(
        self, *words: str, output: str = "table", nats_url: str | None = None
    ) -> tuple[int, str, str]:
        self._capsys.readouterr()
        # As a command does, in an event loop of its own.
        run = partial(run_orphans, words, output=output, hub=(None, ""), redis_url=None)
        with given_back():
            status = await asyncio.to_thread(run, nats_url=nats_url)
        printed = self._capsys.readouterr()
        return status, printed.out, printed.err


@pytest.fixture
def call(
    rig: Rig,
    tmp_path: Path,
    valkey_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    kubeconfig = tmp_path / "kubeconfig"
    rig.servers.write_kubeconfig(kubeconfig)
    provider = {"type": "kubeconfig", "paths": [str(kubeconfig)], "contexts": ["t1"]}
    monkeypatch.setenv("FLEETBUS_HUB_KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("FLEETBUS_HUB_CONTEXT", HUB)
    monkeypatch.setenv("FLEETBUS_REDIS_URL", valkey_url)
    monkeypatch.setenv("FLEETBUS_PROVIDERS", orjson.dumps([provider]).decode())
    return Command(capsys)


async def test_d7_the_command_lists_orphans_and_deletes_those_it_is_given(rig: Rig, call: Command):
    orphan = await the_orphan(rig)
    status, out, _ = await call(output="json")
    assert status == 0
    [orphan_entry] = orjson.loads(out)["orphans"]
    assert (orphan_entry["cluster"], orphan_entry["kind"], orphan_entry["name"]) == (
        "t1",
        "ConfigMap",
        "b",
    )
    assert orphan_entry["uid"] == orphan.uid
    assert orphan_entry["owner"]["name"] == "x"
    status, out, err = await call("delete", "nobody")
    assert (status, rig.has("t1", MAPS, "b")) == (1, True)
    assert (out, err) == ("", "fleetbus: no orphan has UID 'nobody'\n"), "no log lines"
    status, out, _ = await call("delete", orphan.uid)
    assert "deleted ConfigMap default/b of cluster t1" in out
    assert (status, rig.has("t1", MAPS, "b")) == (0, False)
    with pytest.raises(ConfigError, match="fleetbus orphans delete UID"):
        run_orphans(["delete"], output="table", hub=(None, ""), redis_url=None, nats_url=None)


@pytest.mark.slow
async def test_d7_the_command_deletes_orphans_behind_an_agent(
    rig: Rig, call: Command, tmp_path: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch
):
    orphan = await the_orphan(rig)
    monkeypatch.setenv("FLEETBUS_PROVIDERS", '[{"type": "cluster"}]')
    rig.hub.create(CLUSTERS, {"metadata": {"name": "t1"}, "spec": {"access": "Agent"}})
    status, _, err = await call("delete", orphan.uid)
    assert (status, "its agent is called over NATS: set --nats-url" in err) == (1, True)
    status, _, err = await call("delete", orphan.uid, nats_url="nats://127.0.0.1:1")
    assert (status, err.startswith("fleetbus: clusters with agents are not reached: ")) == (1, True)
    assert rig.has("t1", MAPS, "b")
    async with agent_rig(nats_url, tmp_path) as agents:
        await agents.start(rig.servers.kubeconfig() | {"current-context": "t1"}, "t1")
        status, out, err = await call("delete", orphan.uid, nats_url=nats_url)
    assert (status, err) == (0, "")
    assert "deleted ConfigMap default/b of cluster t1" in out
    assert not rig.has("t1", MAPS, "b")
