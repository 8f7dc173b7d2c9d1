import asyncio
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.kube.discovery import Discovery
from fleetbus.kube.requests import Call
from fleetbus.kube.responses import Answer
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_distributor.targets import converge
from fleetbus_distributor.targets.circuit_breaker import PROBE_AFTER, CircuitBreaker
from fleetbus_distributor.targets.corrections import Corrections
from fleetbus_distributor.targets.outcome import ObjectOutcome, State
from support.rigs.distributor import CONFIG_MAP, Rig


def test_d6_an_object_that_is_changed_again_and_again_is_not_fought_over():
    now = [0.0]
    corrections = Corrections(lambda: now[0])
    desired: dict[str, Any] = {"apiVersion": "v1", "metadata": {}, "data": {"k": "v"}}

    def may_write(
        cluster: str = "t1", of: dict[str, Any] = desired, *, is_same: bool = True
    ) -> bool:
        live = {"metadata": {"uid": "u"}}
        has_room = corrections.has_room(cluster, of, live)
        if has_room:
            corrections.count(cluster, of, live, "m", is_same=is_same)
        return has_room

    assert [may_write() for _ in range(6)] == [True] * 5 + [False]
    assert may_write("t2"), "another object of the same UID, in a cluster made from its backup"
    now[0] += 601
    assert may_write()
    edited = {**desired, "data": {"k": "other"}}
    assert may_write(of=edited, is_same=False), "an edit is written whatever came before"
    assert [may_write(of=edited) for _ in range(6)] == [True] * 5 + [False]


def test_d6_a_fight_is_given_up_for_good_only_where_the_same_comes_back():
    corrections = Corrections()
    desired: dict[str, Any] = {"apiVersion": "v1", "metadata": {}, "data": {"k": "v"}}
    foreign: dict[str, Any] = {"metadata": {"uid": "u"}, "data": {"k": "theirs"}}
    other = {**foreign, "data": {"k": "other"}}
    outcome = ObjectOutcome(ObjectRef("v1", "ConfigMap", "default", "m"), State.CONFLICT)
    for _ in range(5):
        corrections.count("t1", desired, foreign, "m", is_same=True)
    corrections.stop("t1", desired, other, "m", outcome)
    assert corrections.stopped("t1", desired, other, "m") is None
    corrections.stop("t1", desired, foreign, "m", outcome)
    assert corrections.stopped("t1", desired, foreign, "m") is outcome
    assert corrections.stopped("t1", desired, other, "m") is None
    edited = {**desired, "data": {"k": "edited"}}
    assert corrections.stopped("t1", edited, foreign, "m") is None


def test_d11_a_cluster_that_wastes_time_rests_and_is_probed():
    now = [0.0]
    breaker = CircuitBreaker(lambda: now[0])
    breaker.record_failure("quick", "Unreachable", "refused", timedelta(milliseconds=5))
    breaker.record_failure("slow", "Timeout", "no answer", timedelta(seconds=10))
    assert breaker.cooldown_of("quick") is None
    cooldown = breaker.cooldown_of("slow")
    assert cooldown is not None
    assert cooldown.message == "no answer"
    now[0] += PROBE_AFTER.total_seconds() + 0.1
    assert breaker.cooldown_of("slow") is None
    breaker.record_failure("slow", "Timeout", "no answer", timedelta(seconds=10))
    breaker.record_answer("slow")
    assert breaker.cooldown_of("slow") is None


async def test_t21_learning_what_a_cluster_serves_is_not_on_the_clock_of_an_object(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    async def never(_call: Call) -> Answer:
        return await asyncio.Future()

    monkeypatch.setattr(converge, "DISCOVERY_TIMEOUT", timedelta(milliseconds=50))
    rig.fleet.cluster("t1").live.discovery = Discovery(never)
    rig.create(template=CONFIG_MAP, placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    assert rig.states() == {"t1": "Unreachable/Timeout"}
    assert "discovery did not finish" in rig.entry("t1")["message"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("250ms", 0.25), ("7", 7), ("PT8S", 8)]
)
def test_settings_take_durations_as_charts_write_them(
    text: str, seconds: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FLEETBUS_DISTRIBUTOR_RESYNC", text)
    assert DistributorSettings().resync == timedelta(seconds=seconds)
