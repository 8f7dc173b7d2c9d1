"""Writes of a run: none that changes nothing is sent (R10), and each says what it expects (R4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import REGISTRY

from fleetbus.errors import Conflict, Invalid, LeaseLostError, NotFound
from fleetbus.reconcile import Request
from fleetbus.run.current import Run, running
from support.eventually import never
from support.objects import pod
from support.rigs.one_cluster import PODS, Rig
from support.stores.snapshot import Source

REQUEST = Request("copier", "eu1", "prod", "web")


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.server.create(PODS, pod("web", labels={"app": "a"}), "prod")
    return rig


def writes(rig: Rig) -> int:
    return sum(entry.method != "GET" for entry in rig.server.requests)


def next_run(last: Run) -> Run:
    run = Run(REQUEST)
    run.recall(last.note())
    return run


def unsent() -> float:
    sample = REGISTRY.get_sample_value("fleetbus_unsent_writes_total", {"controller": "copier"})
    return sample or 0.0


async def test_r10_an_update_that_changes_nothing_is_not_sent(rig: Rig) -> None:
    await rig.show()
    before, skipped = writes(rig), unsent()
    with running(Run(REQUEST)):
        obj = await rig.cluster.get(PODS, "prod", "web")
        assert obj is not None
        assert await rig.cluster.update(PODS, obj) == obj
        assert (writes(rig), unsent()) == (before, skipped + 1)
        obj["metadata"]["labels"]["app"] = "b"
        assert (await rig.cluster.update(PODS, obj))["metadata"]["labels"] == {"app": "b"}
    assert writes(rig) == before + 1


@pytest.mark.parametrize("way", ["patch", "apply"])
async def test_r10_what_gave_the_version_that_still_holds_is_not_sent_again(
    rig: Rig, way: str
) -> None:
    async def write(label: str) -> dict[str, Any]:
        labels = {"team": label}
        if way == "patch":
            return await rig.cluster.patch(PODS, "prod", "web", {"metadata": {"labels": labels}})
        metadata = {"name": "web", "namespace": "prod", "labels": labels}
        return await rig.cluster.apply(
            PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}, force=True
        )

    await rig.show()
    run, before = Run(REQUEST), writes(rig)
    with running(run):
        await write("x")
    await rig.show()
    for _ in range(3):  # for as long as runs go on asking for it
        run = next_run(run)
        with running(run):
            assert (await write("x"))["metadata"]["labels"]["team"] == "x"
    assert writes(rig) == before + 1
    with running(next_run(run)):
        await write("y")
    assert writes(rig) == before + 2
    # Somebody else writes: the version is another, so it is sent again.
    await rig.cluster.live.patch(PODS, "prod", "web", {"metadata": {"labels": {"team": "z"}}})
    await rig.show()
    with running(next_run(run)):
        assert (await write("x"))["metadata"]["labels"]["team"] == "x"


async def test_r10_outside_of_a_run_every_write_is_sent(rig: Rig) -> None:
    obj = await rig.show()
    before = writes(rig)
    await rig.cluster.update(PODS, obj)
    await rig.cluster.patch(PODS, "prod", "web", {})
    assert writes(rig) == before + 2


async def test_r4_an_update_says_what_it_is_of(rig: Rig) -> None:
    obj = await rig.show()
    del obj["metadata"]["resourceVersion"]
    with pytest.raises(Invalid, match="resourceVersion"):
        await rig.cluster.update(PODS, obj)
    obj["metadata"]["resourceVersion"] = "1"
    with pytest.raises(Conflict):
        await rig.cluster.update(PODS, obj)


@pytest.mark.parametrize("patch", [{"metadata": {"labels": {"a": "b"}}}, [], None])
@pytest.mark.parametrize("expected", [{"uid": "another"}, {"resource_version": "1"}])
async def test_r4_a_patch_of_another_object_or_version_is_refused(
    rig: Rig, patch: Any, expected: dict[str, str]
) -> None:
    body = (
        patch if patch is not None else [{"op": "add", "path": "/metadata/labels/a", "value": ""}]
    )
    before = (await rig.show())["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await rig.cluster.patch(PODS, "prod", "web", body, **expected)
    assert (await rig.show())["metadata"]["resourceVersion"] == before


async def test_r4_a_patch_with_the_right_preconditions_is_made(rig: Rig) -> None:
    metadata = (await rig.show())["metadata"]
    changed = await rig.cluster.patch(
        PODS,
        "prod",
        "web",
        {"metadata": {"labels": {"a": "b"}}},
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
    )
    assert changed["metadata"]["labels"] == {"app": "a", "a": "b"}
    with pytest.raises(NotFound):
        await rig.cluster.patch(PODS, "prod", "nobody", {}, uid="u")


async def test_r4_a_delete_names_uid_and_perhaps_version(rig: Rig) -> None:
    uid = (await rig.show())["metadata"]["uid"]
    for expected in ({"uid": "another"}, {"uid": uid, "resource_version": "1"}):
        with pytest.raises(Conflict):
            await rig.cluster.delete(PODS, "prod", "web", **expected)
    assert await rig.cluster.delete(PODS, "prod", "web", uid=uid)
    assert not await rig.cluster.delete(PODS, "prod", "web", uid=uid)


async def test_r5_a_read_waits_until_the_snapshot_shows_the_deletion(rig: Rig) -> None:
    metadata = (await rig.show())["metadata"]
    uid, version = metadata["uid"], metadata["resourceVersion"]
    with running(Run(REQUEST)):
        await rig.cluster.delete(PODS, "prod", "web", uid=uid)
        async with asyncio.TaskGroup() as group:
            read = group.create_task(rig.cluster.get(PODS, "prod", "web"))
            await never(read.done)
            await rig.snapshot.apply(Source().deleted("web", int(version) + 1, uid=uid))
    assert read.result() is None


async def test_r4_a_write_after_the_lease_is_lost_never_leaves(rig: Rig) -> None:
    obj = await rig.show()
    uid, before = obj["metadata"]["uid"], writes(rig)
    obj["metadata"]["labels"]["app"] = "b"
    cluster = rig.cluster
    for write in (
        lambda: cluster.create(PODS, pod("db", namespace="prod")),
        lambda: cluster.update(PODS, obj),
        lambda: cluster.patch(PODS, "prod", "web", {}),
        lambda: cluster.delete(PODS, "prod", "web", uid=uid),
        lambda: cluster.live.delete(PODS, "prod", "web", uid=uid),
    ):
        with running(Run(REQUEST, holds=lambda: False)), pytest.raises(LeaseLostError):
            await write()
    assert writes(rig) == before
    with running(Run(REQUEST, holds=lambda: False)):
        assert await cluster.live.get(PODS, "prod", "web")
