"""Requests that a target is spared, and clusters that hang (rule D11)."""

import asyncio
import copy
import time
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from fleetbus.errors import StoreError
from fleetbus_distributor.rounds.execute import SILENT_FOR, SilenceWatch
from fleetbus_distributor.targets.circuit_breaker import CircuitBreaker, Cooldown
from fleetbus_distributor.targets.memory import TargetMemory
from fleetbus_distributor.targets.shared_cooldowns import SharedCooldowns
from fleetbus_emulator.apiserver import Hang
from fleetbus_proto import keys
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb
from support.rigs.distributor import CONFIG_MAP, NOWHERE, Rig
from support.rows import each_row

MAPS = "v1/configmaps"
SLOW = timedelta(seconds=2)


def asked(rig: Rig, cluster: str) -> list[str]:
    """The requests of a cluster, but for those that ask which cluster answers."""
    return [
        f"{one.verb} {one.path.rpartition('/')[2]}"
        for one in rig.clusters[cluster].requests
        if not one.path.endswith("/kube-system")
    ]


def place(rig: Rig, name: str = "x", *names: str, **spec: Any) -> None:
    clusters = [{"name": one} for one in names or ("t1",)]
    rig.create(name, template=copy.deepcopy(CONFIG_MAP), placement={"clusters": clusters}, **spec)


async def test_d3_a_new_object_is_created_by_one_request_without_a_read(rig: Rig):
    place(rig)
    await rig.reconcile()
    assert asked(rig, "t1") == ["get v1", "get default", "patch m"]
    rig.edit(template={**CONFIG_MAP, "metadata": {"name": "n", "namespace": "default"}})
    rig.clusters["t1"].requests.clear()
    await rig.reconcile()
    assert asked(rig, "t1")[0] == "patch n"


@pytest.mark.parametrize("conflict", ["Abort", "Overwrite"])
async def test_d3_a_strangers_object_is_read_before_anything_is_done_to_it(rig: Rig, conflict: str):
    stranger = {"metadata": {"name": "m", "namespace": "default"}, "data": {"k": "theirs"}}
    made = rig.clusters["t1"].create(MAPS, stranger)
    place(rig, policy={"conflict": conflict})
    await rig.reconcile()
    found = rig.get("t1", MAPS, "m")
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert asked(rig, "t1")[2:4] == ["patch m", "get m"]  # refused, as it may only create
    if conflict == "Abort":
        assert found == made
    else:
        assert found["data"] == CONFIG_MAP["data"]


async def test_d10_a_namespace_that_is_gone_is_noticed(rig: Rig):
    template = {**CONFIG_MAP, "metadata": {"name": "m", "namespace": "far"}}
    rig.distributor.executor.memory.note_namespace("t1", "far")  # as it existed before
    rig.create(template=template, placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    assert rig.states() == {"t1": "Waiting/NamespaceMissing"}
    rig.edit(policy={"createNamespaces": True})
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    assert rig.has("t1", MAPS, "m", "far")


def event(
    version: str, *, uid: str = "u", cluster: str = "t1", verb: Verb = Verb.MODIFIED
) -> Event:
    return Event(
        cluster=cluster,
        incarnation=Incarnation(1, "i"),
        group="core",
        version="v1",
        resource="configmaps",
        kind="ConfigMap",
        namespace="default",
        name="m",
        uid=uid,
        resource_version=version,
        verb=verb,
        epoch=Rank("1", 1),
        observed_at="2026-01-01T00:00:00.000000Z",
        object=None,
    )


def test_d11_only_the_version_that_our_own_apply_has_made_is_ignored():
    memory = TargetMemory()
    memory.note_write("t1", {"metadata": {"uid": "u", "resourceVersion": "7"}})
    assert memory.has_made(event("7"))
    assert not memory.has_made(event("8"))
    assert not memory.has_made(event("7", uid="another"))
    assert not memory.has_made(event("7", cluster="t2"))
    assert not memory.has_made(event("7", verb=Verb.DELETED))


# --- clusters that hang -----------------------------------------------------------------------


def test_d11_after_a_cooldown_one_caller_probes_and_the_others_go_on_skipping():
    now = [0.0]
    breaker = CircuitBreaker(lambda: now[0])
    breaker.record_failure("slow", "Timeout", "no answer", SLOW)
    now[0] = 5.1
    assert breaker.cooldown_of("slow") is None
    assert breaker.cooldown_of("slow") is not None
    breaker.record_answer("slow")
    assert breaker.cooldown_of("slow") is None


async def test_d11_processes_share_what_they_know_of_a_cluster_that_hangs(redis: Redis):
    one, other = CircuitBreaker(), CircuitBreaker()
    shared = [SharedCooldowns(redis, breaker) for breaker in (one, other)]
    one.record_failure("slow", "Timeout", "no answer", SLOW)
    for each in shared:
        await each.copy()
    found = other.cooldown_of("slow")
    assert found is not None
    assert (found.reason, found.message) == ("Timeout", "no answer")
    other.record_answer("slow")
    for each in reversed(shared):
        await each.copy()
    assert one.cooldown_of("slow") is None


async def test_s8_d11_what_is_no_cooldown_is_ignored(redis: Redis):
    far = b'{"reason":"x","message":"x","until":99999999999}'
    found: Any = {b"a": b"nonsense", b"b": far, b"c": b'{"reason":"x","message":"","until":1}'}
    await redis.hset(keys.cooldowns(), mapping=found)
    breaker = CircuitBreaker()
    await SharedCooldowns(redis, breaker).copy()
    assert not any(breaker.is_open(name) for name in "abc")


async def test_d11_without_the_store_each_process_knows_what_it_has_seen():
    breaker = CircuitBreaker()
    breaker.record_failure("slow", "Timeout", "no answer", SLOW)
    async with Redis.from_url(NOWHERE) as away:
        with pytest.raises(StoreError):
            await SharedCooldowns(away, breaker).copy()
    assert breaker.cooldown_of("slow")
    assert breaker.unpublished  # published when the store is back


async def test_d11_a_cluster_that_hangs_costs_other_rounds_nothing_once_it_is_known(rig: Rig):
    place(rig, "x", "t1", "t2")
    place(rig, "y", "t1", "t2")
    rig.clusters["t2"].faults.add(Hang())
    await rig.reconcile("x")
    assert rig.states("x") == {"t1": "Applied", "t2": "Unreachable/Timeout"}
    begun = time.monotonic()
    await rig.reconcile("y")
    assert time.monotonic() - begun < SILENT_FOR.total_seconds()
    assert rig.states("y")["t2"] == "Unreachable/Timeout"
    rig.clusters["t2"].faults.clear()
    await asyncio.sleep(0)
    rig.distributor.executor.breaker.record_answer("t2")  # as after the probe
    await rig.reconcile("y")
    assert rig.states("y")["t2"] == "Applied"


def watch(began: float) -> SilenceWatch:
    made = SilenceWatch()
    made._began = began  # pyright: ignore[reportPrivateUsage]
    return made


@each_row(
    ("ago", "answered", "known", "silent"),
    [
        (2.0, {"a": 1.5, "b": 9.0}, set[str](), ["b"]),
        (0.5, {"a": 0.4, "b": 9.0}, set[str](), []),  # too early
        (2.0, {"a": 0.1, "b": 9.0}, set[str](), []),  # something is still answered
        (2.0, {"a": 9.0, "b": 9.0}, set[str](), []),  # nobody answers: it may be us
        (2.0, {"a": 9.0, "b": 9.0}, {"b"}, ["b"]),  # other rounds found it to hang
        (6.0, {"a": 9.0, "b": 9.0}, set[str](), ["b"]),
        (2.0, {"a": 1.5, "b": 1.0}, set[str](), []),  # slow, not silent
    ],
)
def test_d11_only_a_cluster_that_alone_delays_its_round_is_given_up(
    ago: float, answered: dict[str, float], known: set[str], silent: list[str]
):
    now = time.monotonic()
    at = {name: now - seconds for name, seconds in answered.items()}
    assert watch(now - ago).silent(at, ["b"], known) == silent


def test_d11_what_others_say_does_not_undo_what_was_just_seen():
    breaker = CircuitBreaker()
    breaker.record_failure("slow", "Timeout", "no answer", SLOW)
    breaker.learn({})
    assert breaker.is_open("slow")
    breaker.unpublished.clear()
    breaker.learn({"other": Cooldown("Timeout", "x", time.time() + 5)})
    assert breaker.cooldown_of("other")
    assert not breaker.is_open("slow")


async def test_d3_a_restart_asks_about_an_object_before_it_writes_it(rig: Rig):
    template = {**copy.deepcopy(CONFIG_MAP), "data": {"k": "v", "none": None}}
    rig.create(template=template, placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()

    def are_dry() -> list[bool]:
        sent = [one for one in rig.writes("t1") if one.path.endswith("/m")]
        rig.clusters["t1"].requests.clear()
        return ["dryRun" in one.query for one in sent]

    for is_first in (True, False):
        if is_first:
            rig.restart()
        are_dry()
        await rig.reconcile()
        assert are_dry() == [True] * is_first
    rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "theirs"}})
    are_dry()
    await rig.reconcile()
    assert set(are_dry()) == {False}
    assert rig.get("t1", MAPS, "m")["data"] == {"k": "v"}


async def test_d13_what_somebody_changed_before_a_restart_is_corrected(rig: Rig):
    rig.create(template=copy.deepcopy(CONFIG_MAP), placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "theirs"}})
    rig.restart()
    await rig.reconcile()
    assert rig.states() == {"t1": "Applied"}
    assert rig.get("t1", MAPS, "m")["data"] == {"k": "v"}
