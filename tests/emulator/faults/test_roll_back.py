"""Restored backups: every past state that the logs reach comes back whole, and is gone on from."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from emulator.support.kube_calls import (
    CONFIGMAPS,
    CRDS,
    Calls,
    changes,
    config_map,
    widget,
    widget_definition,
)
from emulator.support.sim_rig import DEPLOYMENTS, PODS, workload
from fleetbus_emulator.apiserver import Cluster, DropEvents, NotServed
from fleetbus_emulator.controllers import simulate
from support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetbus_emulator.apiserver import Commit

DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "example.com/v1/widgets"
WIDGET_DEFINITION = "widgets.example.com"
CONFIG_MAPS = "v1/configmaps"
TYPES = ("v1/namespaces", CONFIG_MAPS, DEFINITIONS, WIDGETS, "scheduling.k8s.io/v1/priorityclasses")
State = dict[tuple[str, str, str], int]


def replayed(history: Iterable[Commit]) -> State:
    """The objects that exist by the ground truth."""
    state: State = {}
    history = list(history)
    past: dict[int, State] = {history[0].rv - 1: {}}
    for commit in history:
        place = commit.resource, commit.namespace, commit.name
        if commit.type == "ROLLED_BACK":
            state = dict(past[commit.rv])
        elif commit.type == "DELETED":
            assert state.pop(place) == commit.before
        else:
            assert state.get(place) == commit.before
            state[place] = commit.rv
        past[commit.rv] = dict(state)
    return state


def present(cluster: Cluster) -> State:
    return {
        (gvr.rpartition("/")[2], meta.get("namespace", ""), meta["name"]): int(
            meta["resourceVersion"]
        )
        for gvr in TYPES
        if cluster.serves(gvr)
        for meta in (obj["metadata"] for obj in cluster.shared(gvr))
    }


def write_something(cluster: Cluster, random: Random) -> None:
    name = f"a{random.randrange(6)}"
    served = cluster.serves(WIDGETS)
    if random.random() < 0.1:
        if served:
            cluster.delete(DEFINITIONS, None, WIDGET_DEFINITION)
        else:
            cluster.create(DEFINITIONS, widget_definition())
        return
    gvr = WIDGETS if served and random.random() < 0.5 else CONFIG_MAPS
    if cluster.get(gvr, "default", name) is None:
        make = widget if gvr == WIDGETS else config_map
        cluster.create(gvr, make(name), "default")
    elif random.random() < 0.5:
        cluster.delete(gvr, "default", name)
    else:
        cluster.patch(gvr, "default", name, {"metadata": {"labels": {"n": str(random.random())}}})


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_there_is_what_the_ground_truth_tells_through_any_restored_backups(seed: int):
    random = Random(seed)
    cluster = Cluster("alpha", seed=seed, event_capacity=20)
    restored = 0
    for _ in range(20):
        for _ in range(random.randrange(1, 20)):
            write_something(cluster, random)
        if random.random() < 0.2:
            cluster.compact(cluster.resource_version - random.randrange(8), watches=True)
        back = cluster.resource_version - random.randrange(40)
        before = present(cluster)
        try:
            cluster.roll_back(back)
            restored += 1
        except ValueError:
            assert present(cluster) == before
        assert present(cluster) == replayed(cluster.history)
    assert restored > 5


def test_a_backup_from_before_a_definition_knows_neither_it_nor_its_instances():
    calls = Calls(Cluster("alpha", seed=1))
    back = calls.cluster.resource_version
    calls.post(CRDS, widget_definition())
    calls.cluster.create(WIDGETS, widget("a"), "default")
    calls.cluster.roll_back(back)
    with pytest.raises(NotServed):
        calls.cluster.list(WIDGETS)
    calls.post(CRDS, widget_definition())
    assert calls.cluster.list(WIDGETS) == []


def test_a_backup_brings_a_deleted_definition_back_with_its_instances():
    cluster = Cluster("alpha", seed=1)
    cluster.create(DEFINITIONS, widget_definition())
    cluster.create(WIDGETS, widget("a"), "default")
    back = cluster.resource_version
    cluster.delete(DEFINITIONS, None, WIDGET_DEFINITION)
    cluster.roll_back(back)
    assert [found["metadata"]["name"] for found in cluster.list(WIDGETS)] == ["a"]


def test_a_definition_that_was_going_in_the_backup_goes_on_going():
    cluster = Cluster("alpha", seed=1)
    cluster.create(DEFINITIONS, widget_definition())
    cluster.create(WIDGETS, widget("a", {"finalizers": ["example.com/hold"]}), "default")
    cluster.delete(DEFINITIONS, None, WIDGET_DEFINITION)
    cluster.roll_back(cluster.resource_version - 1)
    cluster.patch(WIDGETS, "default", "a", {"metadata": {"finalizers": None}})
    assert cluster.get(DEFINITIONS, None, WIDGET_DEFINITION) is None


def test_what_an_event_log_has_forgotten_cannot_be_restored():
    cluster = Cluster("alpha", seed=1, event_capacity=4)
    cluster.create(CONFIG_MAPS, config_map("kept"), "default")
    back = cluster.resource_version
    cluster.delete(CONFIG_MAPS, "default", "kept")
    for number in range(6):
        cluster.create(CONFIG_MAPS, config_map(f"a{number}"), "default")
        cluster.delete(CONFIG_MAPS, "default", f"a{number}")
    with pytest.raises(ValueError, match="not within the event log"):
        cluster.roll_back(back)


def test_lists_and_watches_go_on_from_a_restored_backup_that_is_older_than_a_compaction():
    calls = Calls(Cluster("alpha", seed=1))
    for name in ("a", "b"):
        calls.post(CONFIGMAPS, config_map(name))
    back = calls.cluster.resource_version
    calls.post(CONFIGMAPS, config_map("c"))
    calls.cluster.compact(watches=False)
    calls.post(CRDS, widget_definition())
    calls.cluster.roll_back(back)
    page = calls.get(CONFIGMAPS, limit="1")
    assert calls.get(CONFIGMAPS, continue_=page.meta["continue"]).status == 200
    calls.post(CRDS, widget_definition())
    watch = calls.watch("/apis/example.com/v1/widgets", resourceVersion=str(back))
    calls.cluster.create(WIDGETS, widget("a"), "default")
    assert changes(watch) == ["ADDED:a"]


def test_what_was_decided_about_dropped_events_is_void_for_those_of_a_restored_backup():
    calls = Calls(Cluster("alpha"))
    calls.cluster.faults.add(DropEvents(), resource="configmaps", count=1)
    calls.cluster.create(CONFIG_MAPS, config_map("first"), "default")
    back = calls.cluster.resource_version
    watch = calls.watch(CONFIGMAPS, resourceVersion=str(back))
    calls.cluster.create(CONFIG_MAPS, config_map("undone"), "default")
    assert changes(watch) == [], "its one event is dropped"
    calls.cluster.roll_back(back)
    watch = calls.watch(CONFIGMAPS, resourceVersion=str(back))
    calls.cluster.create(CONFIG_MAPS, config_map("next"), "default")
    assert changes(watch) == ["ADDED:next"]


def test_what_was_decided_about_events_of_before_a_restored_backup_stays():
    calls = Calls(Cluster("alpha"))
    calls.cluster.faults.add(DropEvents(), resource="configmaps", count=1)
    since = str(calls.cluster.resource_version)
    calls.cluster.create(CONFIG_MAPS, config_map("dropped"), "default")
    assert changes(calls.watch(CONFIGMAPS, resourceVersion=since)) == []
    calls.cluster.roll_back(calls.cluster.resource_version)
    assert changes(calls.watch(CONFIGMAPS, resourceVersion=since)) == []


async def test_simulated_controllers_go_on_from_a_restored_backup_at_once():
    cluster = Cluster("alpha", seed=1)
    async with simulate(cluster) as (simulator,):
        await simulator.settled()
        cluster.create(DEPLOYMENTS, workload("web", replicas=3))
        back = cluster.resource_version
        await simulator.settled()
        cluster.roll_back(back)
        assert cluster.list(PODS) == []
        await eventually(lambda: len(cluster.list(PODS)) == 3)
