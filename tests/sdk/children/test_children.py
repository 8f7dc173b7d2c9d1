"""Children controllers on emulated clusters, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

import fleetbus
from fleetbus.children.marks import APPLIED_ANNOTATION, CHILD_ANNOTATION
from fleetbus.children.policy import Child
from fleetbus.clusters.leaving import LEFT_LABEL, NAMESPACE
from fleetbus.errors import ConfigError
from fleetbus.ownership import FINALIZER, OWNER_ANNOTATION, OWNER_UID_LABEL, PROTECT_ANNOTATION
from fleetbus.testing import ControllerTest, controller_test
from fleetbus.workqueue.memory import MemoryQueue
from fleetbus_proto.keys import SnapshotKeys
from support.stores.snapshot import Source

Object = dict[str, Any]
MAPS, KEY = "v1/configmaps", "core/configmaps"
RECHECK = timedelta(seconds=15)
SELDOM = timedelta(minutes=6)


def family(**options: Any) -> fleetbus.Children:
    """Each labelled ConfigMap of `a` has a child where its data say, `b` if they say nothing."""
    chosen: dict[str, Any] = {
        "parents": MAPS,
        "children": MAPS,
        "parent_clusters": ["a"],
        "parent_selector": "managed",
        "recheck": RECHECK,
        **options,
    }
    controller = fleetbus.Children("maps", **chosen)

    @controller.desired
    async def _desired(parent: Object, _cluster: str, _fleet: fleetbus.Fleet) -> list[Child]:
        to = [one for one in parent.get("data", {}).get("to", "b").split(",") if one]
        namespace = parent.get("data", {}).get("namespace", "default")
        return [Child(one, wanted(parent["metadata"]["name"], namespace)) for one in to]

    return controller


def wanted(name: str, namespace: str = "default") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-child", "namespace": namespace},
        "data": {"made": "by us"},
    }


def make_parent(t: ControllerTest, name: str = "p", **data: str) -> Object:
    metadata = {"name": name, "labels": {"managed": "yes", "team": "blue"}}
    return t.clusters["a"].create(MAPS, {"metadata": metadata, "data": data}, "default")


def child(t: ControllerTest, cluster: str = "b", name: str = "p") -> Object | None:
    return t.clusters[cluster].get(MAPS, "default", f"{name}-child")


def parent_of(t: ControllerTest, name: str = "p") -> Object | None:
    return t.clusters["a"].get(MAPS, "default", name)


def lines(logs: Sequence[Mapping[str, Any]], event: str) -> list[Mapping[str, Any]]:
    return [line for line in logs if line["event"] == event]


async def test_an_idle_family_is_reconciled_without_a_single_request() -> None:
    async with controller_test(family()) as t:
        make_parent(t)
        await t.run_until_idle()
        before = [len(one.requests) for one in t.clusters.clusters]
        t.clusters["a"].patch(MAPS, "default", "p", {"data": {"other": "field"}})
        runs = len(t.requests)
        await t.run_until_idle()
        assert len(t.requests) > runs
        asked = [
            one.path
            for cluster, number in zip(t.clusters.clusters, before, strict=True)
            for one in cluster.requests[number:]
            if one.user_agent.startswith("fleetbus")
        ]
        assert not asked


async def test_a_stranger_of_a_childs_name_is_untouched_and_reported_of_once() -> None:
    with capture_logs() as logs:
        async with controller_test(family()) as t:
            before = t.clusters["b"].create(MAPS, {"metadata": {"name": "p-child"}}, "default")
            make_parent(t)
            await t.run_until_idle()
            await t.advance(SELDOM)
            assert len(lines(logs, "child_conflict")) == 1
            t.clusters["a"].delete(MAPS, "default", "p")
            await t.run_until_idle()
            assert child(t) == before
            assert parent_of(t) is None


async def test_d4_a_child_whose_mark_cannot_be_read_is_neither_deleted_nor_written() -> None:
    with capture_logs() as logs:
        async with controller_test(family()) as t:
            make_parent(t)
            await t.run_until_idle()
            broken = {"metadata": {"annotations": {OWNER_ANNOTATION: "{broken"}}}
            t.clusters["b"].patch(MAPS, "default", "p-child", broken)
            t.clusters["a"].patch(MAPS, "default", "p", {"data": {"other": "field"}})
            await t.run_until_idle()
            before = child(t)
            assert len(lines(logs, "child_conflict")) == 1
            t.clusters["a"].delete(MAPS, "default", "p")
            await t.run_until_idle()
            assert child(t) == before


@pytest.mark.parametrize("mark", [OWNER_UID_LABEL, CHILD_ANNOTATION])
async def test_d5_a_child_whose_marks_do_not_agree_survives_its_parent(mark: str) -> None:
    async with controller_test(family()) as t:
        make_parent(t)
        await t.run_until_idle()
        field = "labels" if mark == OWNER_UID_LABEL else "annotations"
        changed = {"metadata": {field: {mark: "other"}}, "data": {"made": "by them"}}
        t.clusters["b"].patch(MAPS, "default", "p-child", changed)
        t.clusters["a"].delete(MAPS, "default", "p")
        await t.run_until_idle()
        left = child(t)
        assert left is not None
        assert left["data"] == {"made": "by them"}


async def test_a_protected_child_survives_its_parent_and_the_next_one_of_that_name() -> None:
    with capture_logs() as logs:
        async with controller_test(family()) as t:
            make_parent(t)
            await t.run_until_idle()
            protect = {"metadata": {"annotations": {PROTECT_ANNOTATION: "true"}}}
            first = t.clusters["b"].patch(MAPS, "default", "p-child", protect)
            t.clusters["a"].delete(MAPS, "default", "p")
            await t.run_until_idle()
            assert parent_of(t) is None
            assert child(t) == first
            make_parent(t)
            await t.run_until_idle()
            assert child(t) == first
    assert [line["child_name"] for line in lines(logs, "child_protected")] == ["p-child"]


async def test_r6_a_snapshot_that_lacks_the_parent_deletes_nothing() -> None:
    async with controller_test(family()) as t:
        make_parent(t)
        await t.run_until_idle()
        reader: Any = t.fleet.reader
        names = SnapshotKeys()
        lost = [make("a", KEY) for make in (names.bodies, names.guards, names.order)]
        assert await reader._redis.delete(*lost) == len(lost)
        assert await t.fleet.cluster("a").get(MAPS, "default", "p") is None
        runs = len(t.requests)
        touch = {"metadata": {"labels": {"touched": "yes"}}}
        t.clusters["b"].patch(MAPS, "default", "p-child", touch)
        await t.run_until_idle()
        assert len(t.requests) > runs
        assert child(t) is not None
        assert not [write for write in t.writes if write.verb == "delete"]


async def test_a_parent_made_anew_under_its_name_gets_a_child_of_its_own() -> None:
    async with controller_test(family(finalizer=False)) as t:
        make_parent(t)
        await t.run_until_idle()
        first = child(t)
        t.clusters["a"].delete(MAPS, "default", "p")
        again = make_parent(t)
        await t.run_until_idle()
        second = child(t)
        assert first is not None
        assert second is not None
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
        assert second["metadata"]["labels"][OWNER_UID_LABEL] == again["metadata"]["uid"]


async def test_without_a_finalizer_parents_are_never_written_and_children_go_with_them() -> None:
    async with controller_test(family(finalizer=False)) as t:
        before = make_parent(t)
        await t.run_until_idle()
        assert child(t) is not None
        assert parent_of(t) == before
        t.clusters["a"].delete(MAPS, "default", "p")
        await t.run_until_idle()
        assert child(t) is None


async def test_b11_a_child_too_large_for_the_bus_is_found_and_removed_and_a_strangers_stays() -> (
    None
):
    async with controller_test(family()) as t:
        make_parent(t)
        await t.run_until_idle()
        stranger = t.clusters["b"].create(MAPS, {"metadata": {"name": "big"}}, "default")
        await t.run_until_idle()
        for name in ("p-child", "big"):
            await lose_body(t, name)
        t.clusters["b"].create("v1/namespaces", {"metadata": {"name": "other"}})
        t.clusters["a"].patch(MAPS, "default", "p", {"data": {"namespace": "other"}})
        await t.run_until_idle()
        assert child(t) is None
        assert t.clusters["b"].get(MAPS, "other", "p-child") is not None
        assert t.clusters["b"].get(MAPS, "default", "big") == stranger


async def test_b11_a_large_child_whose_server_does_not_answer_is_looked_for_again() -> None:
    async with controller_test(family(finalizer=False), clusters=["a", "b"]) as t:
        make_parent(t)
        await t.run_until_idle()
        await lose_body(t, "p-child")
        t.clusters["b"].stop()
        t.clusters["a"].delete(MAPS, "default", "p")
        await t.run_until_idle()
        t.clusters["b"].start()
        assert child(t) is not None
        await t.advance(SELDOM)
        assert child(t) is None


async def lose_body(t: ControllerTest, name: str) -> None:
    """An object of `b` in the snapshot that was published without its body."""
    runner = t._runner  # pyright: ignore[reportPrivateUsage]
    entry = await runner.reader.get("b", KEY, "default", name)
    assert entry is not None
    source = Source(cluster="b", resource="configmaps", incarnation=entry.incarnation)
    version = int(entry.resource_version) + 1
    options: dict[str, Any] = {"body": None, "degraded": "oversized", "uid": entry.uid}
    await runner.writer.apply([source.modified(name, version, namespace="default", **options)])
    found = await runner.reader.get("b", KEY, "default", name)
    assert found is not None
    assert not found.body


async def test_a_finalizer_that_is_not_wanted_any_more_is_taken_off() -> None:
    async with controller_test(family(), clusters=["a", "b"]) as t:
        make_parent(t)
        await t.run_until_idle()
        held = parent_of(t)
    assert held is not None
    assert FINALIZER in held["metadata"]["finalizers"]
    async with controller_test(family(finalizer=False)) as t:
        t.clusters["a"].create(
            MAPS,
            {
                "metadata": {
                    key: held["metadata"][key]
                    for key in ("name", "labels", "annotations", "finalizers")
                },
                "data": {},
            },
            "default",
        )
        await t.run_until_idle()
        found = parent_of(t)
        assert found is not None
        assert "finalizers" not in found["metadata"]
        assert child(t) is not None


async def test_a_parent_that_leaves_the_selector_loses_its_children_and_the_finalizer() -> None:
    async with controller_test(family()) as t:
        make_parent(t)
        await t.run_until_idle()
        t.clusters["a"].patch(MAPS, "default", "p", {"metadata": {"labels": {"managed": None}}})
        await t.run_until_idle()
        assert child(t) is None
        found = parent_of(t)
        assert found is not None
        assert "finalizers" not in found["metadata"]
        assert "annotations" not in found["metadata"]


async def test_a_child_moves_only_once_it_stands_in_its_new_place() -> None:
    async with controller_test(family(), clusters=["a", "b", "c"]) as t:
        make_parent(t)
        await t.run_until_idle()
        t.clusters["c"].stop()
        t.clusters["a"].patch(MAPS, "default", "p", {"data": {"to": "c"}})
        await t.run_until_idle()
        assert child(t, "b") is not None
        t.clusters["c"].start()
        await t.advance(2 * RECHECK)
        assert child(t, "c") is not None
        assert child(t, "b") is None
        found = parent_of(t)
        assert found is not None
        assert found["metadata"]["annotations"] == {"fleetbus.dev/children.maps": "c"}


async def test_a_missing_namespace_is_waited_for() -> None:
    with capture_logs() as logs:
        async with controller_test(family()) as t:
            make_parent(t, namespace="later")
            await t.run_until_idle()
            assert len(lines(logs, "child_kind_or_namespace_missing")) == 1
            t.clusters["b"].create("v1/namespaces", {"metadata": {"name": "later"}})
            await t.advance(2 * RECHECK)
            assert t.clusters["b"].get(MAPS, "later", "p-child") is not None


async def test_what_was_wanted_once_is_taken_off_a_child_and_what_others_added_stays() -> None:
    async with controller_test(controller := family()) as t:
        make_parent(t)
        await t.run_until_idle()
        t.clusters["b"].patch(MAPS, "default", "p-child", {"data": {"theirs": "too"}})

        async def smaller(_parent: Object, _cluster: str, _fleet: fleetbus.Fleet) -> list[Child]:
            return [Child("b", wanted("p") | {"data": {"now": "this"}})]

        changed: Any = controller  # as after a new release
        changed._desired = smaller
        t.clusters["a"].patch(MAPS, "default", "p", {"data": {"other": "field"}})
        await t.run_until_idle()
        found = child(t)
        assert found is not None
        assert found["data"] == {"now": "this", "theirs": "too"}
        assert found["metadata"]["annotations"][APPLIED_ANNOTATION]


async def test_children_may_have_the_labels_of_their_parents_but_not_our_marks() -> None:
    async with controller_test(family(copy_labels=True)) as t:
        make_parent(t)
        await t.run_until_idle()
        found = child(t)
        assert found is not None
        assert {"team": "blue", "managed": "yes"}.items() <= found["metadata"]["labels"].items()


async def test_what_is_made_once_is_never_changed() -> None:
    controller = fleetbus.Children("once", parents=MAPS, children=MAPS, parent_selector="managed")

    @controller.desired
    async def _desired(parent: Object, _cluster: str, _fleet: fleetbus.Fleet) -> list[Child]:
        return [Child("b", wanted("p") | {"data": parent.get("data", {})}, create_only=True)]

    async with controller_test(controller) as t:
        make_parent(t, v="1")
        await t.run_until_idle()
        t.clusters["a"].patch(MAPS, "default", "p", {"data": {"v": "2"}})
        await t.run_until_idle()
        found = child(t)
        assert found is not None
        assert found["data"] == {"v": "1"}


async def test_children_are_written_in_the_name_that_impersonate_says() -> None:
    asked: list[str] = []

    def user(cluster: str) -> str:
        asked.append(cluster)
        return "somebody"

    async with controller_test(family(impersonate=user)) as t:
        make_parent(t)
        await t.run_until_idle()
        assert asked == ["a"]
        assert child(t) is not None


async def test_two_controllers_keep_children_of_one_parent_and_the_last_lets_it_go() -> None:
    first, second = family(), fleetbus.Children("more", parents=MAPS, children=MAPS)

    @second.desired
    async def _desired(parent: Object, _cluster: str, _fleet: fleetbus.Fleet) -> list[Child]:
        name = parent["metadata"]["name"]
        return [Child("b", wanted(f"{name}-2"))] if name == "p" else []

    async with controller_test(first, second) as t:
        make_parent(t)
        await t.run_until_idle()
        assert child(t) is not None
        assert child(t, name="p-2") is not None
        t.clusters["a"].delete(MAPS, "default", "p")
        await t.run_until_idle()
        assert parent_of(t) is None
        assert child(t) is None
        assert child(t, name="p-2") is None


async def test_the_sweep_wakes_parents_that_are_gone_and_no_others() -> None:
    controller = family(finalizer=False, sweep=timedelta(milliseconds=10))
    async with controller_test(controller) as t:
        make_parent(t)
        await t.run_until_idle()
        orphan = child(t)
    assert orphan is not None
    bystander = fleetbus.Controller("bystander")
    bystander.watch(MAPS)

    @bystander.reconcile
    async def _look(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None: ...

    async with controller_test(bystander) as t:
        for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
            orphan["metadata"].pop(field, None)
        t.clusters["b"].create(MAPS, orphan, "default")
        t.clusters["b"].create(MAPS, {"metadata": {"name": "plain"}}, "default")
        await t.run_until_idle()
        queue = MemoryQueue("maps")
        assert await controller.orphans.sweep(queue, t.fleet) == 1
        leases = await queue.take(10, wait=timedelta())
        await queue.done(leases)
        sweeping = asyncio.gather(*controller.background_loops(queue, t.fleet))
        leases = await queue.take(10, wait=timedelta(seconds=30))
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        assert [lease.request for lease in leases] == [controller.request("a", "default", "p")]


async def nonsense(parent: Object, _cluster: str, _fleet: fleetbus.Fleet) -> Any:
    answers: dict[str, Any] = {
        "none": None,
        "object": {"kind": "ConfigMap"},
        "nameless": [Child("b", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}})],
        "twice": [Child("b", wanted("p")), Child("b", wanted("p"))],
        "resource": [Child("b", wanted("p"), resource="v1/pods")],
    }
    return answers.get(parent["metadata"]["name"], [])


async def test_nonsense_of_desired_is_reported_of_and_writes_nothing() -> None:
    controller = fleetbus.Children("maps", parents=MAPS, children=MAPS, parent_clusters=["a"])
    controller.desired(nonsense)
    names = {"none", "object", "nameless", "twice", "resource"}
    with capture_logs() as logs:
        async with controller_test(controller) as t:
            for name in names:
                t.clusters["a"].create(MAPS, {"metadata": {"name": name}}, "default")
            await t.run_until_idle()
            assert len(lines(logs, "reconcile_gave_up")) == len(names)
            assert not t.writes


def test_a_controller_that_is_not_whole_or_asks_for_what_is_not_is_refused() -> None:
    whole: dict[str, Any] = {"parents": MAPS, "children": MAPS}
    wrong: dict[str, Any] = whole | {"unreachable": "orphan"}
    with pytest.raises(ConfigError, match="no @desired function"):
        fleetbus.Children("maps", **whole).function()
    with pytest.raises(ConfigError, match="must be 'wait' or 'retain'"):
        fleetbus.Children("maps", **wrong)
    with pytest.raises(ConfigError, match="must name a resource"):
        fleetbus.Children("maps", parents=MAPS, children=[])
    with pytest.raises(ConfigError, match="must be positive"):
        fleetbus.Children("maps", **whole, sweep=timedelta())
    with pytest.raises(ConfigError, match="must be `async def`"):
        fleetbus.Children("maps", **whole).desired(lambda *_: [])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="finalizer=True is not possible"):
        fleetbus.Children("x", parents="fleetbus.dev/v1alpha1/clusters", children=MAPS)
    twice = family()
    with pytest.raises(ConfigError, match="two @desired functions"):
        twice.desired(nonsense)


async def test_d7_parents_wait_for_a_cluster_that_vanished_and_not_for_an_unjoined_one() -> None:
    noted = {"annotations": {"fleetbus.dev/children.maps": "b,c"}}  # c is in no fleet now
    with capture_logs() as logs:
        async with controller_test(family(), hub="a") as t:
            for name in ("p", "q"):
                make_parent(t, name)
            await t.run_until_idle()
            for name in ("p", "q"):
                t.clusters["a"].patch(MAPS, "default", name, {"metadata": noted})
            t.clusters["a"].delete(MAPS, "default", "p")
            await t.run_until_idle()
            for name in ("p", "q"):
                held = parent_of(t, name)
                assert held is not None
                assert "c" in held["metadata"]["annotations"]["fleetbus.dev/children.maps"]
            assert lines(logs, "child_unreachable")
            assert not lines(logs, "child_left_behind")
            record = {"name": "left-c", "labels": {LEFT_LABEL: "c"}}
            t.clusters["a"].create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
            t.clusters["a"].create(MAPS, {"metadata": record}, NAMESPACE)
            await t.advance(2 * RECHECK)
            assert parent_of(t, "p") is None
            released = parent_of(t, "q")
    assert released is not None
    assert released["metadata"]["annotations"] == {"fleetbus.dev/children.maps": "b"}
    left = lines(logs, "child_left_behind")
    assert [line["child_cluster"] for line in left] == ["c", "c"]
