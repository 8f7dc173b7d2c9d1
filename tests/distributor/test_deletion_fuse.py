"""Rule D8: what no edit of a MultiClusterResource asks for does not empty the fleet."""

from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from fleetbus.deletions.budget import (
    Decision,
    Deletion,
    DeletionBudget,
    OwnerLimits,
    allowance,
)
from fleetbus.errors import StoreError
from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION
from fleetbus_distributor.render.draft import Draft, Renderer
from fleetbus_emulator.apiserver import Fail
from support.eventually import eventually
from support.objects import config_map
from support.rigs.distributor import NOWHERE, Rig, distributor_rig

MAPS = "v1/configmaps"
NAMESPACES = "v1/namespaces"
PROD = {"clusterSelector": {"matchLabels": {"tier": "prod"}}}
MEMBERS = ("c0", "c1", "c2", "c3", "c4")
BIG = 1_000_000
FREE = {"clusters": 100, "objects": 100, "percent": 100}


def left(rig: Rig, *names: str) -> int:
    """Return how many of these objects there are, over all clusters."""
    return sum(rig.has(cluster, MAPS, name) for cluster in rig.clusters for name in names)


def held(rig: Rig, *names: str) -> list[str]:
    return [name for name in names if rig.plan_hash(name)]


def relabel(rig: Rig, *clusters: str, tier: str = "prd") -> None:
    for cluster in clusters:
        rig.fleet.join(cluster, tier=tier)


@pytest.fixture
async def fleet(valkey_url: str) -> AsyncGenerator[Rig]:
    """Five members with the same label, and a store."""
    async with distributor_rig(*MEMBERS, redis_url=valkey_url) as rig:
        relabel(rig, *MEMBERS, tier="prod")
        yield rig


async def make(rig: Rig, *names: str, objects: int = 1) -> None:
    for name in names:
        maps = [config_map(f"{name}-{n}" if n else name) for n in range(objects)]
        rig.create(name, templates=maps, placement=PROD)
        await rig.reconcile(name)
        assert set(rig.states(name).values()) == {"Applied"}


async def test_d8_a_typo_in_the_label_of_most_clusters_deletes_nothing(fleet: Rig):
    names = [f"x{n}" for n in range(6)]
    await make(fleet, *names)
    relabel(fleet, *MEMBERS[1:])
    for name in names:
        await fleet.reconcile(name)
    assert left(fleet, *names) == 30
    assert held(fleet, *names) == names
    assert fleet.resource("x0")["status"]["held"]["clusters"] == list(MEMBERS[1:])


async def test_d8_labels_that_change_one_after_the_other_are_one_change(fleet: Rig):
    await make(fleet, "x")
    for cluster in MEMBERS[1:]:
        relabel(fleet, cluster)
        await fleet.reconcile()
    assert left(fleet, "x") == 4, "the first one may go, and no other"
    assert fleet.resource()["status"]["held"]["clusters"] == ["c2", "c3", "c4"]
    relabel(fleet, *MEMBERS[2:], tier="prod")
    await fleet.reconcile()
    assert held(fleet, "x") == []
    assert left(fleet, "x") == 4


@pytest.mark.parametrize("when", ["at once", "after a crash", "after another edit", "unreachable"])
async def test_d8_an_explicit_edit_is_not_held_however_many_rounds_it_takes(fleet: Rig, when: str):
    await make(fleet, "x", objects=2)
    fleet.edit(templates=[config_map("x")])
    if when == "after a crash":
        for name in MEMBERS:
            fleet.clusters[name].faults.add(Fail(503), verb="delete", count=1)
        await fleet.reconcile()
        fleet.restart()
    if when == "after another edit":
        await fleet.reconcile()
        fleet.edit(vars={"a": "b"})
    if when == "unreachable":
        for name in MEMBERS:
            fleet.clusters[name].faults.add(Fail(503), verb="delete", count=1)
        await fleet.reconcile()
        for name in MEMBERS:  # labels that do not matter to it
            fleet.fleet.join(name, tier="prod", zone="z")
    await fleet.until(lambda: left(fleet, "x-1") == 0)
    assert left(fleet, "x") == 5
    assert held(fleet, "x") == []


async def test_d8_a_relabelling_is_held_though_the_spec_is_edited_meanwhile(fleet: Rig):
    await make(fleet, "x", objects=2)
    relabel(fleet, *MEMBERS[1:])
    fleet.edit(templates=[config_map("x")])  # and the edit is followed where labels are as before
    await fleet.reconcile()
    assert (left(fleet, "x"), left(fleet, "x-1")) == (5, 4)
    fleet.edit(vars={"a": "b"})
    fleet.restart()
    await fleet.reconcile()
    await fleet.reconcile()
    assert (left(fleet, "x"), left(fleet, "x-1")) == (5, 4)
    fleet.edit(placement={"clusters": [{"name": "c0"}]})  # this asks for it, whatever the labels
    await fleet.until(lambda: left(fleet, "x") == 1)


async def test_d8_confirming_releases_that_plan_and_no_other(fleet: Rig):
    await make(fleet, "x")
    relabel(fleet, *MEMBERS[1:])
    await fleet.reconcile()
    first = fleet.plan_hash()
    relabel(fleet, "c1", tier="prod")
    fleet.annotate(CONFIRM_PRUNE_ANNOTATION, first)
    await fleet.reconcile()
    assert left(fleet, "x") == 5
    second = fleet.plan_hash()
    assert second != first
    fleet.annotate(CONFIRM_PRUNE_ANNOTATION, second)
    await fleet.until(lambda: left(fleet, "x") == 2)
    assert fleet.has("c1", MAPS, "x")
    await fleet.until(lambda: not fleet.resource()["metadata"].get("annotations"))
    relabel(fleet, "c1")
    await fleet.reconcile()
    assert left(fleet, "x") == 2, "half of what is left"


@pytest.mark.slow
async def test_d8_the_whole_fleet_has_a_budget_shared_by_all_processes(fleet: Rig):
    names = [f"x{n}" for n in range(6)]
    await make(fleet, *names, objects=10)
    relabel(fleet, "c4")
    exceeded = REGISTRY.get_sample_value("fleetbus_deletion_budget_exceeded_total") or 0
    for name in names:
        fleet.restart()  # another process each time
        await fleet.reconcile(name)
    assert held(fleet, *names) == ["x5"]
    assert fleet.states("x5")["c4"] == "Held/FleetBudget"
    assert fleet.condition("DeletionHeld", "x5")["reason"] == "FleetBudget"
    assert REGISTRY.get_sample_value("fleetbus_deletion_budget_exceeded_total") == exceeded + 1
    assert left(fleet, "x0") == 4

    # A person is asked about it: what the budget becomes meanwhile is no answer.
    await DeletionBudget(fleet.redis).refill()
    await fleet.reconcile("x5")
    assert held(fleet, *names) == ["x5"]
    fleet.annotate(CONFIRM_PRUNE_ANNOTATION, fleet.plan_hash("x5"), "x5")
    await fleet.until(lambda: left(fleet, "x5") == 4, "x5")


@pytest.mark.slow
async def test_d8_what_the_budget_held_stays_held_when_another_cluster_joins(fleet: Rig):
    fleet.fleet.leave("c0")
    names = [f"x{n}" for n in range(6)]
    await make(fleet, *names, objects=10)
    relabel(fleet, "c4")
    for name in names:
        await fleet.reconcile(name)
    assert held(fleet, *names) == ["x5"]
    await DeletionBudget(fleet.redis).refill()  # as ten minutes do
    relabel(fleet, "c0", tier="prod")
    await fleet.reconcile("x5")
    assert fleet.has("c0", MAPS, "x5")
    assert fleet.has("c4", MAPS, "x5")
    assert fleet.states("x5")["c4"] == "Held/FleetBudget"
    fleet.annotate(CONFIRM_PRUNE_ANNOTATION, fleet.plan_hash("x5"), "x5")
    await fleet.until(lambda: not fleet.has("c4", MAPS, "x5"), "x5")


async def test_d8_what_was_held_stays_held_though_a_template_fails_meanwhile(fleet: Rig):
    maps = [config_map(f"x-{n}") for n in range(9)] + [config_map("x-${cluster.labels.tier}")]
    everywhere = {"clusters": [{"name": name} for name in MEMBERS]}
    fleet.create(templates=maps, placement=everywhere, policy={"fuse": FREE})
    await fleet.reconcile()
    relabel(fleet, *MEMBERS)
    await fleet.redis.zadd("fleetbus:{deletions}:budget", {f"a|c|{n}": 1e15 for n in range(50)})
    await fleet.reconcile()
    assert fleet.condition("DeletionHeld")["reason"] == "FleetBudget"
    fleet.fleet.join("c0")  # its template cannot be rendered
    await fleet.reconcile()
    assert fleet.states()["c0"] == "Failed/RenderFailed"
    assert fleet.condition("DeletionHeld")["status"] == "True"
    assert fleet.plan_hash()
    await DeletionBudget(fleet.redis).refill()
    relabel(fleet, "c0")
    await fleet.reconcile()
    assert left(fleet, "x-prod") == 5
    fleet.annotate(CONFIRM_PRUNE_ANNOTATION, fleet.plan_hash())
    await fleet.until(lambda: left(fleet, "x-prod") == 0)


async def test_d8_a_deletion_that_is_tried_again_is_paid_once(fleet: Rig):
    await make(fleet, "x", objects=10)
    relabel(fleet, "c4")
    fleet.clusters["c4"].faults.add(Fail(503), verb="delete")
    for _ in range(7):
        await fleet.reconcile()
    assert left(fleet, "x") == 5
    assert await DeletionBudget(fleet.redis).used() == 10
    assert held(fleet, "x") == []


async def test_d8_without_the_store_nothing_is_deleted_that_no_edit_asks_for():
    async with distributor_rig(*MEMBERS, redis_url=NOWHERE) as rig:
        relabel(rig, *MEMBERS, tier="prod")
        await make(rig, "x", objects=2)
        relabel(rig, "c4")
        result = await rig.reconcile()
        assert rig.states()["c4"] == "Held/CauseUnknown"
        assert result is not None
        assert result.requeue_after is not None
        assert result.requeue_after <= timedelta(seconds=10)
        assert left(rig, "x") == 5
        rig.edit(templates=[config_map("x")])
        await rig.until(lambda: left(rig, "x-1") == 1)
        assert left(rig, "x") == 5


def during_the_draft(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Let something change while the next round renders, which is off the event loop."""
    really_draft = Renderer.draft

    async def draft(drafts: Renderer, *arguments: Any) -> Draft:
        drafted = await really_draft(drafts, *arguments)
        monkeypatch.setattr(Renderer, "draft", really_draft)
        change()
        return drafted

    monkeypatch.setattr(Renderer, "draft", draft)


async def test_d8_a_cluster_that_comes_back_during_a_round_loses_nothing(
    fleet: Rig, monkeypatch: pytest.MonkeyPatch
):
    everywhere = {"clusters": [{"name": name} for name in MEMBERS]}
    fleet.create(template=config_map("x"), placement=everywhere)
    await fleet.reconcile()
    fleet.fleet.leave("c1")
    fleet.edit(vars={"a": "b"})
    during_the_draft(monkeypatch, lambda: fleet.fleet.join("c1"))
    await fleet.reconcile()
    assert fleet.has("c1", MAPS, "x")
    assert fleet.states()["c1"] == "Held/ClusterGone"
    await fleet.reconcile()
    assert set(fleet.states().values()) == {"Applied"}


async def test_d8_a_relabelling_during_a_round_is_not_taken_for_an_edit(
    fleet: Rig, monkeypatch: pytest.MonkeyPatch
):
    await make(fleet, "x")
    during_the_draft(monkeypatch, lambda: relabel(fleet, *MEMBERS[1:]))
    await fleet.reconcile()
    fleet.edit(vars={"a": "b"})
    await fleet.reconcile()
    assert left(fleet, "x") == 5
    assert held(fleet, "x") == ["x"]


def limits(uid: str, **more: int) -> OwnerLimits:
    most = {"clusters": BIG, "objects": BIG, "percent": 100, "on_record": BIG}
    return OwnerLimits(uid=uid, **most | more)


def objects(count: int, cluster: str = "c") -> list[Deletion]:
    return [Deletion(cluster=cluster, object=f"o{n}") for n in range(count)]


async def test_d8_the_budget_fills_up_again(fleet: Rig):
    budget = DeletionBudget(fleet.redis, window=timedelta(milliseconds=300))
    assert (await budget.spend(limits("a"), objects(50), allowed=50)).decision is Decision.GRANTED
    refused = await budget.spend(limits("b"), objects(1), allowed=50)
    assert (refused.decision, refused.used) == (Decision.FLEET, 50)

    async def is_granted() -> bool:
        return (
            await budget.spend(limits("b"), objects(1), allowed=50)
        ).decision is Decision.GRANTED

    await eventually(is_granted)
    assert await fleet.redis.zcard("fleetbus:{deletions}:budget") == 1


async def test_d8_all_or_none_is_granted_and_the_owners_own_limits_count_over_the_window(
    fleet: Rig,
):
    budget = DeletionBudget(fleet.redis)
    assert (await budget.spend(limits("a"), objects(51), allowed=50)).decision is Decision.FLEET
    assert await budget.used() == 0
    own_limits = limits("a", clusters=2, objects=20, percent=30, on_record=40)
    assert (await budget.spend(own_limits, objects(12), allowed=50)).decision is Decision.GRANTED
    assert (await budget.spend(own_limits, objects(12), allowed=50)).decision is Decision.GRANTED
    assert (await budget.spend(own_limits, objects(13), allowed=50)).decision is Decision.OWNER
    elsewhere = await budget.spend(own_limits, objects(1, "d"), allowed=50)
    assert elsewhere.decision is Decision.OWNER
    assert (await budget.spend(limits("b"), objects(1), allowed=50)).decision is Decision.GRANTED
    assert await budget.used() == 13


async def test_d8_a_clock_of_the_store_that_went_back_locks_nothing_in(fleet: Rig):
    budget = DeletionBudget(fleet.redis, window=timedelta(milliseconds=200))
    await fleet.redis.zadd("fleetbus:{deletions}:budget", {"a|c|old": 1e15})
    assert (await budget.spend(limits("b"), objects(50), allowed=50)).decision is Decision.FLEET

    async def is_granted() -> bool:
        return (
            await budget.spend(limits("b"), objects(50), allowed=50)
        ).decision is Decision.GRANTED

    await eventually(is_granted)


def test_d8_a_large_fleet_allows_five_percent():
    assert [allowance(size) for size in (0, 1000, 1001, 20_000)] == [50, 50, 50, 1000]


async def test_d8_a_large_fleet_is_counted_when_the_budget_runs_out(
    fleet: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.deletions.budget.PERCENT", 15)
    monkeypatch.setattr("fleetbus_distributor.plan.fleet_fuse.LEAST", 10)
    monkeypatch.setattr("fleetbus.deletions.budget.LEAST", 10)
    names = ["x0", "x1", "x2"]
    await make(fleet, *names, objects=10)  # 150 on record: 22 may go
    relabel(fleet, "c4")
    for name in names:
        await fleet.reconcile(name)
    assert held(fleet, *names) == ["x2"]


async def test_d8_a_budget_that_cannot_be_reached_says_so():
    async with distributor_rig("t1", redis_url=NOWHERE) as rig:
        with pytest.raises(StoreError, match="budget of deletions"):
            await DeletionBudget(rig.redis).used()
