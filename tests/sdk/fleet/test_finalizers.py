"""Finalizers of a reconcile function: put on once, taken off alone, and nobody's name is lost."""

from __future__ import annotations

from typing import Any

import pytest

import fleetbus
from fleetbus import Conflict, Invalid, Request
from fleetbus.finalizers import finalizers_of, has_finalizer, with_finalizer, without_finalizer
from fleetbus.run.current import ObjectRef, Run, running
from fleetbus.testing import controller_test
from support.objects import pod
from support.rigs.one_cluster import PODS, Rig
from support.rows import each_row

MAPS = "v1/configmaps"
MINE, OTHER = "example.com/mine", "example.com/other"
REF = ObjectRef("eu1", "core/pods", "prod", "web")


def create(rig: Rig, *finalizers: str) -> dict[str, Any]:
    return rig.server.create(PODS, pod("web", finalizers=list(finalizers)), "prod")


def stored(rig: Rig) -> dict[str, Any] | None:
    return rig.server.get(PODS, "prod", "web")


def on_server(rig: Rig) -> list[str]:
    obj = stored(rig)
    assert obj is not None
    return finalizers_of(obj)


def writes(rig: Rig) -> int:
    return sum(entry.method != "GET" for entry in rig.server.requests)


@each_row("metadata", [{}, {"finalizers": None}, {"finalizers": []}])
def test_an_object_without_finalizers_has_none(metadata: dict[str, Any]) -> None:
    obj = {"metadata": metadata}
    assert not has_finalizer(obj, MINE)
    assert with_finalizer(obj, MINE) == [MINE]
    assert without_finalizer(obj, MINE) == []


def test_the_finalizers_of_others_keep_their_order_and_the_object_is_not_changed() -> None:
    obj = {"metadata": {"finalizers": [OTHER, MINE, "z"]}}
    assert has_finalizer(obj, MINE)
    assert with_finalizer(obj, MINE) == [OTHER, MINE, "z"]
    assert without_finalizer(obj, MINE) == [OTHER, "z"]
    assert obj == {"metadata": {"finalizers": [OTHER, MINE, "z"]}}


async def test_a_finalizer_is_added_beside_others_and_only_once(rig: Rig) -> None:
    create(rig, OTHER)
    obj, before = await rig.show(), writes(rig)
    answer = await rig.cluster.add_finalizer(PODS, obj, MINE)
    assert on_server(rig) == finalizers_of(answer) == [OTHER, MINE]
    assert fleetbus.has_finalizer(answer, MINE)
    assert await rig.cluster.add_finalizer(PODS, answer, MINE) == answer
    # The snapshot lags: what is there already is seen live, and not written again.
    assert await rig.cluster.add_finalizer(PODS, obj, MINE) == answer
    assert writes(rig) == before + 1


async def test_r5_a_run_remembers_its_finalizers(rig: Rig) -> None:
    create(rig)
    run = Run(Request("copier", "eu1", "prod", "web"))
    with running(run):
        answer = await rig.cluster.add_finalizer(PODS, await rig.show(), MINE)
        assert run.writes[REF].resource_version == answer["metadata"]["resourceVersion"]
        assert await rig.show() == answer | {"metadata": (await rig.show())["metadata"]}
        await rig.cluster.remove_finalizer(PODS, answer, MINE)
        assert run.writes[REF].resource_version != answer["metadata"]["resourceVersion"]


async def test_a_finalizer_that_the_watcher_hides_is_not_lost(rig: Rig) -> None:
    create(rig, OTHER)
    obj = await rig.show(finalizers=None)
    assert finalizers_of(obj) == []
    answer = await rig.cluster.add_finalizer(PODS, obj, MINE)
    assert on_server(rig) == [OTHER, MINE]
    partial = {**answer, "metadata": {**answer["metadata"], "finalizers": [MINE]}}
    await rig.cluster.remove_finalizer(PODS, partial, MINE)
    assert on_server(rig) == [OTHER]


@pytest.mark.parametrize("has_mine", [True, False])
async def test_r4_a_finalizer_that_somebody_adds_meanwhile_is_not_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, has_mine: bool
) -> None:
    create(rig, *([MINE] if has_mine else []))
    obj, live = await rig.show(), rig.cluster.live
    get = live.get

    async def get_then_change(*args: Any) -> Any:
        found = await get(*args)
        finalizers = [*on_server(rig), OTHER]
        rig.server.patch(PODS, "prod", "web", {"metadata": {"finalizers": finalizers}})
        return found

    async def change() -> None:
        if has_mine:
            await rig.cluster.remove_finalizer(PODS, obj, MINE)
        else:
            await rig.cluster.add_finalizer(PODS, obj, MINE)

    with monkeypatch.context() as patched:
        patched.setattr(live, "get", get_then_change)
        with pytest.raises(Conflict):
            await change()
    assert on_server(rig) == ([MINE, OTHER] if has_mine else [OTHER])
    await change()
    assert on_server(rig) == ([OTHER] if has_mine else [OTHER, MINE])


async def test_d5_another_object_of_the_name_is_left_alone(rig: Rig) -> None:
    obj = create(rig, MINE)
    rig.server.patch(PODS, "prod", "web", {"metadata": {"finalizers": None}})
    rig.server.delete(PODS, "prod", "web")
    rig.server.create(PODS, pod("web", finalizers=[MINE, OTHER]), "prod")
    before = writes(rig)
    await rig.cluster.remove_finalizer(PODS, obj, MINE)
    with pytest.raises(Conflict, match="'web' was deleted or replaced"):
        await rig.cluster.add_finalizer(PODS, obj, "example.com/third")
    assert (on_server(rig), writes(rig)) == ([MINE, OTHER], before)


async def test_the_last_finalizer_lets_a_deleted_object_go_and_then_there_is_nothing_to_do(
    rig: Rig,
) -> None:
    create(rig, MINE)
    await rig.cluster.live.delete(PODS, "prod", "web")
    obj = stored(rig)
    assert obj is not None
    with pytest.raises(Invalid):
        await rig.cluster.add_finalizer(PODS, obj, OTHER)
    await rig.cluster.remove_finalizer(PODS, obj, MINE)
    assert stored(rig) is None
    await rig.cluster.remove_finalizer(PODS, obj, MINE)
    with pytest.raises(Conflict):
        await rig.cluster.add_finalizer(PODS, without(obj), MINE)


def without(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "finalizers": []}}


async def test_a_controller_cleans_up_before_its_object_goes(valkey_url: str) -> None:
    outside: set[str] = set()
    controller = fleetbus.Controller("registrar")
    controller.watch(MAPS, clusters=["a"], selector="register=yes")

    @controller.reconcile
    async def register(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        cluster = fleet.cluster(request.cluster)
        obj = await cluster.get(MAPS, request.namespace, request.name)
        if obj is None:
            return
        if obj["metadata"].get("deletionTimestamp"):
            outside.discard(request.name)
            await cluster.remove_finalizer(MAPS, obj, MINE)
        else:
            await cluster.add_finalizer(MAPS, obj, MINE)
            outside.add(request.name)

    async with controller_test(controller, store=valkey_url) as t:
        a = t.clusters["a"]
        a.create(MAPS, {"metadata": {"name": "x", "labels": {"register": "yes"}}}, "default")
        await t.run_until_idle()
        found = a.get(MAPS, "default", "x")
        assert found is not None
        assert (finalizers_of(found), outside) == ([MINE], {"x"})
        a.delete(MAPS, "default", "x")
        await t.run_until_idle()
        assert (a.get(MAPS, "default", "x"), outside) == (None, set())
        assert [run.outcome for run in t.requests] == ["done"] * len(t.requests)
