"""Slots of a process that one cluster may have, and what its label says of its turns (Q9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.controller import Controller
from fleetbus.errors import ConfigError, Unreachable
from fleetbus.process import metrics
from fleetbus.worker.queue_gauges import QueueGauges
from fleetbus.worker.queue_weights import WEIGHT_LABEL, QueueWeights
from fleetbus.worker.slots import ALONE, Slots, is_outage
from fleetbus.workqueue import Breaker, Lease, Priority, Stats
from support.rows import each_row
from support.stores.workqueue import named

LONG = timedelta(seconds=60)


def lease(cluster: str, *, is_probe: bool = False) -> Lease:
    return Lease(
        request=named("a", cluster=cluster),
        fence="1.t.g",
        attempt=0,
        deadline=0,
        enqueued_at=datetime.now(UTC),
        priority=Priority.LIVE,
        trigger=b"",
        is_probe=is_probe,
    )


@each_row(("total", "cap"), [(1, 1), (2, 1), (3, 1), (8, 4)])
def test_q9_one_of_several_clusters_has_half_of_the_slots(total: int, cap: int):
    slots = Slots(total, None)
    assert slots.default_capacity == cap
    slots.share(1)
    assert slots.default_capacity == total
    slots.share(2)
    assert slots.default_capacity == cap


def test_q9_what_the_author_chose_is_what_holds():
    slots = Slots(8, 7)
    slots.share(1)
    assert slots.default_capacity == 7
    slots.share(50)
    assert slots.default_capacity == 7
    assert Slots(4, 9).default_capacity == 4
    with pytest.raises(ConfigError, match="max_per_cluster must be at least 1"):
        Controller("copier", max_per_cluster=0)


def free(slots: Slots, cluster: str, *, is_success: bool = True) -> None:
    slots.free(lease(cluster), is_success=is_success)


def test_q9_room_follows_what_runs_and_names_only_clusters_that_run():
    slots = Slots(8, None)
    slots.take(lease("a"))
    slots.take(lease("a"))
    slots.take(lease("b"))
    assert slots.capacity == {"a": 2, "b": 3}
    slots.share(1)
    assert slots.capacity == {"a": 6, "b": 7}
    free(slots, "b")
    free(slots, "a")
    assert slots.capacity == {"a": 7}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_alone(self, fraction: float = 1.0) -> None:
        self.now += fraction * ALONE.total_seconds()


def test_q9_the_only_cluster_that_wants_slots_gets_all_of_them_once_it_succeeds():
    clock = Clock()
    slots = Slots(8, None, clock=clock)
    slots.take(lease("a"))
    clock.pass_alone(1.5)
    slots.take(lease("a"))
    assert (slots.capacity, slots.default_capacity) == ({"a": 2}, 4), (
        "nobody knows whether it answers"
    )
    free(slots, "a", is_success=False)
    assert slots.capacity == {"a": 3}
    free(slots, "a")
    assert (slots.capacity, slots.default_capacity) == ({"a": 8}, 4), (
        "others that come get half at first"
    )
    clock.pass_alone()
    slots.share(50)
    assert slots.capacity == {}, "its last success was too long ago"


def test_q9_another_cluster_that_wants_slots_ends_that_for_a_while():
    clock = Clock()
    slots = Slots(8, None, clock=clock)
    slots.take(lease("a"))
    clock.pass_alone(1.5)
    free(slots, "a")
    assert slots.capacity == {"a": 8}
    for _ in range(7):
        slots.take(lease("a"))
    assert slots.capacity == {"a": 1}
    slots.take(lease("b"))
    assert slots.capacity == {"a": -3, "b": 3}
    for _ in range(5):
        free(slots, "a")
    slots.take(lease("a"))
    clock.pass_alone(1.5)
    free(slots, "a")
    assert slots.capacity == {"a": 2, "b": 3}, "b still has its slot"
    free(slots, "b")
    clock.pass_alone(0.9)
    free(slots, "a")
    assert slots.capacity == {"a": 3}
    clock.pass_alone(0.2)
    slots.share(50)
    assert slots.capacity == {"a": 7}
    slots.take(lease("dead", is_probe=True))
    slots.share(50)
    assert slots.capacity == {"a": 7, "dead": 3}, "a probe wants no share"


def test_q9_probes_have_a_quarter_of_the_slots():
    slots = Slots(8, None)
    assert slots.probes == 2
    slots.take(lease("a", is_probe=True))
    slots.take(lease("b", is_probe=True))
    assert slots.probes == 0
    slots.free(lease("a", is_probe=True), is_success=False)
    assert slots.probes == 1
    assert Slots(1, None).probes == 1


def test_q9_only_the_clusters_own_silence_is_its_outage():
    error = Unreachable(0, "Unreachable", "no answer")
    assert not is_outage(error, "a"), "whose it is is not known"
    error.cluster = "a"
    assert is_outage(error, "a")
    assert not is_outage(error, "b")
    assert is_outage(ExceptionGroup("two", [ValueError(), ExceptionGroup("in", [error])]), "a")
    assert not is_outage(ExceptionGroup("one", [ValueError()]), "a")


def info(name: str, weight: str | None) -> ClusterInfo:
    labels = {} if weight is None else {WEIGHT_LABEL: weight}
    return ClusterInfo(name=name, labels=labels, provider="test", config=None)


def test_q9_a_weight_is_a_number_from_1_to_100_and_what_is_none_is_reported_once():
    bad = ["0", "101", "-1", "1.5", "", "many", "\u0661", "1000"]
    fleet = [info("none", None), info("one", "1"), info("low", "2"), info("high", "100")]
    fleet += [info(f"bad{index}", text) for index, text in enumerate(bad)]
    weights = QueueWeights()
    with capture_logs() as logs:
        assert weights.read(fleet) == {"low": 2, "high": 100}
        assert weights.read(fleet) == {"low": 2, "high": 100}
    assert [line["value"] for line in logs] == bad


def series(name: str, cluster: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"controller": "gauges", "cluster": cluster})


def test_q7_q9_each_cluster_of_the_fleet_has_gauges_from_0_and_no_other_has_any():
    names = (
        "fleetbus_queue_cluster_depth",
        "fleetbus_queue_oldest_seconds",
        "fleetbus_queue_quarantined",
        "fleetbus_queue_breaker_open",
    )
    metrics.create_cluster_metrics("gauges", "c1")
    assert [series(name, "c1") for name in names] == [0, 0, 0, 0]
    full = Stats(
        depth={
            ("c1", Priority.LIVE): 2,
            ("c1", Priority.INITIAL): 3,
            ("strange", Priority.LIVE): 1,
        },
        delayed=0,
        processing=0,
        quarantined=2,
        oldest=LONG,
        ages={"c1": LONG, "strange": LONG},
        kept={"c1": 1, "strange": 1},
        breakers=[Breaker("c1", 5, 1, LONG, is_probing=False)],
    )
    gauges = QueueGauges("gauges")
    with capture_logs() as logs:
        gauges.show(full, ["c1"])
        gauges.show(full, ["c1"])
    assert [series(name, "c1") for name in names] == [5, 60, 1, 1]
    assert [series(name, "strange") for name in names] == [None] * 4
    with capture_logs() as later:
        gauges.show(Stats({}, 0, 0, 0, None), ["c1"])
    logged = [(line["event"], line["cluster"]) for line in [*logs, *later]]
    assert logged == [("breaker_opened", "c1"), ("breaker_closed", "c1")]
    assert [series(name, "c1") for name in names] == [0, 0, 0, 0]
    metrics.drop_cluster_metrics("gauges", "c1")
    assert [series(name, "c1") for name in names] == [None] * 4
