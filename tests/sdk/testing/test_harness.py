"""`fleetbus.testing`, for authors of controllers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

import fleetbus
from fleetbus.errors import ConfigError
from fleetbus.process.loopback import allows_loopback
from fleetbus.testing import (
    ControllerTest,
    EmulatedFleet,
    NotIdle,
    assert_converges,
    controller_test,
    emulated_fleet,
)
from support.objects import config_map

MAPS = "v1/configmaps"


def copier(name: str = "copier") -> fleetbus.Controller:
    """Copies config maps with the label `copy` from a to b; deletes what lost its source."""
    controller = fleetbus.Controller(name)
    controller.watch(MAPS, clusters=["a"], namespaces=["default"])

    @controller.reconcile
    async def copy(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        source = await fleet.cluster("a").get(MAPS, "default", request.name)
        target = fleet.cluster("b")
        if source is None:
            if found := await target.live.get(MAPS, "default", request.name):
                await target.delete(MAPS, "default", request.name, uid=found["metadata"]["uid"])
            return
        desired = config_map(request.name, k="1") | {"data": source["data"]}
        await target.apply(MAPS, desired, force=True)

    return controller


def data_of(test: ControllerTest, cluster: str, name: str) -> dict[str, str] | None:
    found = test.clusters[cluster].get(MAPS, "default", name)
    return found["data"] if found else None


def of(test: ControllerTest, name: str) -> list[tuple[str, int]]:
    return [(r.outcome, r.attempt) for r in test.requests if r.request.name == name]


async def test_a_controller_runs_on_emulated_clusters_until_nothing_is_left_to_do(
    valkey_url: str,
) -> None:
    async with controller_test(copier(), store=valkey_url) as t:
        t.clusters["a"].create(MAPS, config_map("x", k="1"))
        await t.run_until_idle()
        assert data_of(t, "b", "x") == {"k": "1"}
        assert of(t, "x") == [("done", 1)]
        written = [w for w in t.writes if w.name == "x"]
        assert [(w.cluster, w.verb, w.resource, w.status) for w in written] == [
            ("b", "patch", MAPS, 201)
        ]
        t.clusters["a"].patch(MAPS, "default", "x", {"data": {"k": "2"}})
        await t.run_until_idle()
        assert data_of(t, "b", "x") == {"k": "2"}
        t.clusters["a"].delete(MAPS, "default", "x")
        await t.run_until_idle()
        assert t.clusters["b"].get(MAPS, "default", "x") is None


async def test_what_was_there_before_is_listed_and_a_second_idle_does_nothing(
    valkey_url: str,
) -> None:
    async with controller_test(copier(), store=valkey_url) as t:
        await t.run_until_idle()
        runs, writes = len(t.requests), len(t.writes)
        assert of(t, "kube-root-ca.crt")
        await t.run_until_idle()
        assert (len(t.requests), len(t.writes)) == (runs, writes)


async def test_hours_pass_without_waiting_and_every_timer_fires_at_its_time(
    valkey_url: str,
) -> None:
    controller = fleetbus.Controller("ticker")
    controller.watch(MAPS, clusters=["a"], namespaces=["default"])
    at: list[Any] = []

    @controller.reconcile
    async def tick(request: fleetbus.Request, _fleet: fleetbus.Fleet) -> fleetbus.Result:
        if request.name == "x":
            at.append(t.now)
        return fleetbus.Result(requeue_after=timedelta(minutes=25))

    async with controller_test(controller, store=valkey_url) as t:
        t.clusters["a"].create(MAPS, config_map("x", k="1"))
        await t.run_until_idle()
        assert len(at) == 1
        await t.advance(timedelta(minutes=24))
        assert len(at) == 1
        await t.advance(timedelta(minutes=36))
    minutes = [round((moment - at[0]).total_seconds() / 60) for moment in at]
    assert minutes == [0, 25, 50]


async def test_a_failure_is_retried_at_once_and_reported_with_its_attempts(valkey_url: str) -> None:
    controller = fleetbus.Controller("hesitant")
    controller.watch(MAPS, clusters=["a"], namespaces=["default"])
    left = [RuntimeError("no"), fleetbus.NotSynced("not yet")]

    @controller.reconcile
    async def hesitate(request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
        if request.name == "x" and left:
            raise left.pop(0)

    async with controller_test(controller, store=valkey_url) as t:
        t.clusters["a"].create(MAPS, config_map("x", k="1"))
        await t.run_until_idle()
        assert of(t, "x") == [("retried", 1), ("retried", 2), ("done", 3)]
        errors = [r.error for r in t.requests if r.request.name == "x"]
        assert [type(error).__name__ for error in errors] == [
            "RuntimeError",
            "NotSynced",
            "NoneType",
        ]


async def test_what_never_succeeds_is_reported_with_its_reason_and_the_others_are_done(
    valkey_url: str,
) -> None:
    controller = copier()
    broken = fleetbus.Controller("broken")
    broken.watch(MAPS, clusters=["a"], namespaces=["default"])

    @broken.reconcile
    async def fail(_request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
        raise ValueError("seven")

    async with controller_test(controller, broken, store=valkey_url) as t:
        t.clusters["a"].create(MAPS, config_map("x", k="1"))
        with pytest.raises(NotIdle, match=r"broken fails for cluster://a/.*: ValueError: seven"):
            await t.run_until_idle()
        assert t.clusters["b"].get(MAPS, "default", "x") is not None


async def test_a_run_that_hangs_is_named_after_the_limit_and_does_not_hold_up_the_end(
    valkey_url: str,
) -> None:
    controller = fleetbus.Controller("hanging")
    controller.watch(MAPS, clusters=["a"], namespaces=["default"])

    @controller.reconcile
    async def hang(_request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
        await asyncio.Event().wait()

    async with controller_test(controller, store=valkey_url) as t:
        t.clusters["a"].create(MAPS, config_map("x", k="1"))
        with pytest.raises(NotIdle, match=r"hanging is still running cluster://a/default/x"):
            await t.run_until_idle(within=timedelta(milliseconds=300))


async def test_labels_and_the_hub_of_a_test_choose_clusters(valkey_url: str) -> None:
    controller = fleetbus.Controller("chooser")
    controller.watch(MAPS, clusters="region=eu", namespaces=["default"])
    runs: set[tuple[str, str]] = set()

    @controller.reconcile
    async def note(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        runs.add((request.cluster, fleet.hub))

    regions = {"a": {"region": "eu"}, "b": {"region": "us"}}
    async with controller_test(controller, clusters=regions, hub="b", store=valkey_url) as t:
        for name in regions:
            t.clusters[name].create(MAPS, config_map("x", k="1"))
        await t.run_until_idle()
    assert runs == {("a", "b")}


async def test_a_store_with_somebody_elses_data_is_refused_and_left_alone(
    redis: Redis, valkey_url: str
) -> None:
    await redis.set("precious", "1")
    with pytest.raises(ConfigError, match="must be empty"):
        async with controller_test(copier(), store=valkey_url):
            pass
    assert await redis.get("precious") == b"1"


async def test_a_map_that_fails_is_reported(valkey_url: str) -> None:
    controller = fleetbus.Controller("mapper")

    async def fail(*_: object) -> list[fleetbus.Request]:
        raise ValueError("no map")

    @controller.reconcile
    async def rest(*_: object) -> None: ...

    controller.watch(MAPS, clusters=["a"], map=fail)
    async with controller_test(controller, store=valkey_url) as t:
        with pytest.raises(NotIdle, match="a mapping function or a predicate failed"):
            await t.run_until_idle()


# --- R2 -------------------------------------------------------------------------------------------


def create(fleet: EmulatedFleet) -> None:
    for name in ("x", "y", "z"):
        fleet["a"].create(MAPS, config_map(name, k="1"))


def change(fleet: EmulatedFleet) -> None:
    fleet["a"].patch(MAPS, "default", "x", {"data": {"k": "2"}})
    fleet["a"].delete(MAPS, "default", "y")


def restore(fleet: EmulatedFleet) -> None:
    fleet["a"].create(MAPS, config_map("y", k="3"))
    fleet["a"].delete(MAPS, "default", "z")


async def test_r2_a_controller_that_reads_what_is_converges(valkey_url: str) -> None:
    await assert_converges(copier(), create, change, restore, orders=3, store=valkey_url)


async def test_r2_one_that_counts_its_runs_does_not_and_the_difference_is_shown(
    valkey_url: str,
) -> None:
    controller = fleetbus.Controller("counter")
    controller.watch(MAPS, clusters=["a"], namespaces=["default"])

    @controller.reconcile
    async def count(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        target = fleet.cluster("b").live
        copy = await target.get(MAPS, "default", request.name)
        runs = int(copy["data"].get("k", 0)) if copy else 0
        await target.apply(
            MAPS, config_map(request.name, k=str(runs + 1)), field_manager="count", force=True
        )

    with pytest.raises(AssertionError, match=r"'counter' does not converge \(seed 0, order \d"):
        await assert_converges(controller, create, change, restore, store=valkey_url)


async def test_r2_labels_and_hub_count_in_every_order(valkey_url: str) -> None:
    controller = fleetbus.Controller("spread")
    controller.watch(MAPS, clusters="home=yes", namespaces=["default"])
    answers: set[tuple[str, tuple[str, ...]]] = set()

    @controller.reconcile
    async def look(_request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        answers.add((fleet.hub, tuple(cluster.name for cluster in fleet.clusters("home=no"))))

    clusters = {"a": {"home": "yes"}, "b": {"home": "no"}}
    await assert_converges(
        controller, create, clusters=clusters, hub="b", orders=1, store=valkey_url
    )
    assert answers == {("b", ("b",))}


async def test_r2_a_controller_that_nothing_wakes_is_not_said_to_converge(valkey_url: str) -> None:
    controller = fleetbus.Controller("asleep")
    controller.watch(MAPS, clusters="home=yes")
    controller.reconcile(never_called)
    with pytest.raises(AssertionError, match="no event triggered controller 'asleep'"):
        await assert_converges(controller, create, orders=0, store=valkey_url)


async def never_called(_request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
    raise AssertionError("it runs")


def test_s7_a_process_that_emulates_clusters_may_have_them_as_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FLEETBUS_ALLOW_LOOPBACK")
    assert not allows_loopback()
    with emulated_fleet(["a"], workloads=False):
        assert allows_loopback()
