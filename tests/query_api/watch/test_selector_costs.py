"""Watches with selectors cost a bit per object, and a bounded number of comparisons (rule A8)."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from fleetbus.kube.selectors import FieldSelector, LabelSelector
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.limits.turns import Turns
from fleetbus_query_api.responses.problem import TooManyRequestsProblem
from fleetbus_query_api.settings import QueryApiSettings
from fleetbus_query_api.watch.admission import Admission
from fleetbus_query_api.watch.selection import Selector
from fleetbus_query_api.watch.shown_keys import Key, KeyCount, ShownKeys
from support.eventually import eventually
from support.rigs.query_api import QueryApi, served
from support.rigs.watch_client import watching
from support.servers.plain_http import http_client
from support.stores.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

PODS = "core/pods"
EU1 = "/kube/eu1/api/v1/pods"


def selector(labels: str) -> Selector:
    return Selector.of("", "", LabelSelector.parse(labels), FieldSelector.parse(""))


def settings(**limits: int) -> QueryApiSettings:
    return QueryApiSettings(redis_url="redis://127.0.0.1", authentication="none", **limits)  # type: ignore[arg-type]


async def test_a8_the_bits_of_many_selectors_are_those_of_a_set_for_each():  # noqa: C901
    """Selectors come and go, clusters leave, and stale bits are cleared while others are set."""
    random_, count = random.Random(26), KeyCount()
    keys = ShownKeys(count, TimeSlices())
    model: dict[int, dict[str, set[Key]]] = {}
    for _ in range(6_000):
        cluster, key = random_.choice(("eu1", "us1")), ("prod", str(random_.randrange(30)))
        match random_.randrange(12):
            case 0 if len(model) < 20:
                model[keys.allot()] = {}
            case 1 if model:
                bit = random_.choice(list(model))
                for members in model.pop(bit):
                    keys.retire(members, bit)
                keys.release(bit)
            case 2:
                keys.drop(cluster)
                for members in model.values():
                    members.pop(cluster, None)
            case _ if model:
                bit, is_match = random_.choice(list(model)), random_.random() < 0.6
                if cluster not in model[bit]:
                    await keys.prepare(cluster)
                members = model[bit].setdefault(cluster, set())
                keys.set(cluster, key, bit, is_match=is_match)
                (members.add if is_match else members.discard)(key)
            case _:
                pass
        bit = next(iter(model), 0)
        for members, matched in model.get(bit, {}).items():
            assert keys.has(members, key, bit) is (key in matched)
    for bit, clusters in model.items():
        for members in clusters:
            keys.retire(members, bit)
        keys.release(bit)
    assert count.keys == 0


@pytest.mark.slow
def test_a8_a_selector_costs_a_bit_per_object():
    keys = ShownKeys(KeyCount(), TimeSlices())
    names = [("prod", f"web-7d9c5b7f9c-{number:06}") for number in range(5_000)]
    first, *others = [keys.allot() for _ in range(200)]
    for key in names:
        keys.set("eu1", key, first, is_match=True)
    tracemalloc.start()
    try:
        for key in names:
            for bit in others:
                keys.set("eu1", key, bit, is_match=True)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size / len(names) / len(others) < 0.5


def test_a8_the_requirements_of_a_user_and_of_all_are_bounded():
    admission = Admission(settings(user_watch_requirements=4, watch_requirements=6))
    admission.admit("dana", selector("a=1,b=2"))
    release = admission.admit("dana", selector("a=1,c=2"))
    admission.admit("dana", selector("a=1,c=2"))  # equal selectors are one
    admission.admit("dana", selector(""))
    with pytest.raises(TooManyRequestsProblem, match="more than 4 requirements"):
        admission.admit("dana", selector("d"))
    admission.admit("erik", selector("x,y"))
    with pytest.raises(TooManyRequestsProblem, match="all open watches have 6"):
        admission.admit("erik", selector("z"))
    release()
    with pytest.raises(TooManyRequestsProblem):  # another one has it still
        admission.admit("dana", selector("d"))


def test_who_has_no_watch_is_not_remembered():
    admission = Admission(settings(user_watch_requirements=1))
    for number in range(3):
        admission.admit(f"user{number}", selector(f"a={number}"))()
    assert admission.admit("dana", selector("b=1")) is not None
    assert vars(admission)["_selectors"].keys() == {"dana"}


async def test_a8_one_who_has_much_to_do_leaves_turns_to_others():
    turns, begun = Turns(total=3, each=2), list[str]()
    end = asyncio.Event()

    async def work(name: str) -> None:
        async with turns.take(name):
            begun.append(name)
            await end.wait()

    async with asyncio.TaskGroup() as tasks:
        for name in ("mallory",) * 20 + ("dana",):
            tasks.create_task(work(name))
        await eventually(lambda: len(begun) == 3)
        assert sorted(begun) == ["dana", "mallory", "mallory"]
        end.set()
    assert len(begun) == 21
    assert len(turns) == 0


async def test_a8_too_many_selectors_are_429_and_watches_without_them_go_on(
    redis: Redis, valkey_url: str, tmp_path: Path
):
    snapshot = Snapshot(redis)
    await snapshot.set_up()
    async with (
        served(valkey_url, tmp_path, user_watch_requirements=2) as url,
        http_client(url, timeout=10) as client,
        AsyncExitStack() as exits,
    ):
        api = QueryApi(url, client, snapshot)
        await api.add_cluster("eu1", PODS)
        for labels in ("a=1", "a=2", "a=2"):
            await exits.enter_async_context(watching(client, EU1, labelSelector=labels))
        refused = await api.get(EU1, watch="1", labelSelector="a=3")
        assert refused.status_code == 429
        assert "requirements" in refused.json()["message"]
        assert int(refused.headers["Retry-After"]) > 0
        await exits.enter_async_context(watching(client, EU1))
