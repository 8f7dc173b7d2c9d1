"""Answers that no API server gives: they concern their cluster, cost little and are cut (D1, D14).

One event loop does the rounds of all MultiClusterResources: what it computes about the answer of a
member must not grow with the square of it, and what it stores of it has an end.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus.errors import from_status
from fleetbus.kube.client import KubeClient
from fleetbus_distributor.preview.diff import diff_lines
from fleetbus_distributor.targets.drift_report import find_drift
from fleetbus_distributor.targets.target import MAX_MESSAGE, redact_secrets
from support.rigs.distributor import CONFIG_MAP, Object, Rig
from support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

MAPS = "v1/configmaps"
PLACED = {"clusters": [{"name": "t1"}, {"name": "t2"}]}
LONG = 1_000_000
"""The bytes of an error that are read."""
MESSAGES = [
    ": expected " * (LONG // 11),
    ": expected a, got &" * (LONG // 19),
    'conflict with "' * (LONG // 15),
    'conflict with "a" using v1 at ' * (LONG // 30),
    'x "a" is forbidden: User "' + "a" * LONG,
    "Invalid value: " * (LONG // 15),
    "a\x1b[2J\0\n" * (LONG // 7),
]
ODD_DETAILS: list[Any] = [
    "x",
    {"causes": "x"},
    {"causes": ["x", 7, None]},
    {"causes": [{"reason": "FieldManagerConflict", "field": 7, "message": []}]},
    {"causes": [{"reason": "FieldManagerConflict", "field": "x" * LONG, "message": "x" * LONG}]},
    {
        "causes": [
            {"reason": "FieldManagerConflict", "field": f".f{at}", "message": 'conflict with "m"'}
            for at in range(20_000)
        ]
    },
]
STATUSES: list[Object] = [
    *({"reason": "AlreadyExists", "message": text} for text in MESSAGES),
    *({"reason": "x" * LONG, "message": "m", "details": each} for each in ODD_DETAILS),
]
CODES = (400, 401, 403, 404, 409, 422, 429, 500, 503)


@asynccontextmanager
async def never_blocked(limit: float = 2.0) -> AsyncGenerator[None]:
    """The event loop goes on meanwhile: no turn of it takes longer, in CPU time."""
    turns = [time.process_time()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)  # the pace of the ticks
            turns.append(time.process_time())

    ticking = asyncio.create_task(tick(), name="ticks")
    try:
        yield
        await asyncio.sleep(0.02)  # for the last tick
    finally:
        ticking.cancel()
    longest = max(after - before for before, after in itertools.pairwise(turns))
    assert longest < limit, f"one turn of the event loop took {longest:.1f} s"


@pytest.mark.parametrize("code", CODES)
async def test_d1_refusals_of_any_form_concern_their_cluster(
    rig: Rig, code: int, monkeypatch: pytest.MonkeyPatch
):
    original = KubeClient.apply
    statuses = iter(STATUSES)

    async def refuse(self: KubeClient, *args: Any, **options: Any) -> Object:
        if self.cluster == "t1":
            raise from_status(code, next(statuses))
        return await original(self, *args, **options)

    rig.create(template=CONFIG_MAP, placement=PLACED)
    monkeypatch.setattr(KubeClient, "apply", refuse)
    async with never_blocked():
        for at in range(len(STATUSES) // 2):
            rig.restart()
            rig.edit(template={**CONFIG_MAP, "data": {"k": str(at)}})
            await rig.reconcile()
            assert rig.states()["t2"] == "Applied"
            assert not rig.states()["t1"].startswith("Applied")
            assert rig.get("t2", MAPS, "m")["data"]["k"] == str(at)
            assert len(json.dumps(rig.resource()["status"])) < 20_000
            assert all(len(msgspec.json.encode(event)) < 20_000 for event in rig.events)


def _deep(levels: int) -> Object:
    outer: Object = {}
    inner = outer
    for _ in range(levels):
        inner["a"] = inner = {}
    return outer


def _holder(**fields: Any) -> Object:
    return {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsV1": fields}


ODD_PARTS: list[Object] = [
    {"data": {"k": _deep(400)}},
    {"data": {"k": 2**70}},
    {"data": ["k"]},
    {"data": {f"k{at}": "x" for at in range(100_000)}},
    {"metadata": {"managedFields": "x"}},
    {"metadata": {"managedFields": ["x", {"manager": 7}, {"fieldsV1": "x"}]}},
    {"metadata": {"managedFields": [_holder(**{"f:data": {"f:k": []}})]}},
    {"metadata": {"managedFields": [_holder(**{"f:data": _deep(400)})]}},
    {"metadata": {"managedFields": [_holder(**{"f:data": {"f:k": {}}})] * 50_000}},
    {"metadata": {"annotations": {"fleetbus.dev/owner": "x" * LONG}}},
    {"metadata": {"annotations": "x", "labels": 7}},
    {"metadata": {"deletionTimestamp": "x" * LONG}},
    {"status": _deep(400)},
]


@pytest.mark.parametrize("fields", ODD_PARTS, ids=lambda fields: str(fields)[:40])
@pytest.mark.parametrize("drift", ["Correct", "Report"])
async def test_d1_objects_of_any_form_concern_their_cluster(
    rig: Rig, fields: Object, drift: str, monkeypatch: pytest.MonkeyPatch
):
    originals = KubeClient.get, KubeClient.apply

    def odd(obj: Object) -> Object:
        metadata = {**obj["metadata"], **fields.get("metadata", {})}
        return {**obj, **fields, "metadata": metadata}

    async def get(self: KubeClient, resource: str, *args: Any) -> Object | None:
        live = await originals[0](self, resource, *args)
        return odd(live) if live and (self.cluster, resource) == ("t1", MAPS) else live

    async def apply(self: KubeClient, *args: Any, **options: Any) -> Object:
        live = await originals[1](self, *args, **options)
        return odd(live) if self.cluster == "t1" else live

    rig.create(template=CONFIG_MAP, placement=PLACED, policy={"drift": drift})
    await rig.reconcile()
    monkeypatch.setattr(KubeClient, "get", get)
    monkeypatch.setattr(KubeClient, "apply", apply)
    async with never_blocked():
        await rig.reconcile()
        await rig.repair("t1")
        rig.restart()
        rig.edit(template={**CONFIG_MAP, "data": {"k": "w"}})
        await rig.reconcile()
    assert rig.states()["t2"] == "Applied"
    assert rig.get("t2", MAPS, "m")["data"]["k"] == "w"
    assert len(json.dumps(rig.resource()["status"])) < 20_000


def test_d26_who_holds_what_is_found_at_once_whatever_managed_fields_say():
    """A member named 50,000 keys; each was parsed for each item, which took half a minute."""
    items = [{"name": f"n{at}", "v": 1} for at in range(200)]
    keys: Object = {f'k:{{"n":{at}}}': {} for at in range(50_000)}
    holder = _holder(**{"f:spec": {"f:items": keys | {'k:{"name":"n7"}': {"f:v": {}}}}})
    live = {
        "metadata": {"managedFields": [holder]},
        "spec": {"items": [{**each, "v": 2} for each in items]},
    }
    desired = {"metadata": {}, "spec": {"items": items}}
    began = time.process_time()
    drift = find_drift(desired, desired, live, "ours")
    assert time.process_time() - began < 3
    assert len(drift) == len(items)


def test_d26_a_long_name_is_not_repeated_for_all_that_is_below_it():
    name = "n" * LONG
    desired = {"metadata": {}, "spec": {name: {f"k{at}": 1 for at in range(1000)}}}
    live = {"metadata": {}, "spec": {name: {f"k{at}": 2 for at in range(1000)}}}
    drift = find_drift(desired, desired, live, "ours")
    assert len(drift) == 1000
    assert max(len(each.field) for each in drift) < 1000


@pytest.mark.slow
@each_row("message", MESSAGES)
def test_d14_a_message_of_any_form_is_redacted_at_once(message: str):
    began = time.process_time()
    assert len(redact_secrets(message, {})) <= MAX_MESSAGE
    values = {str(at): f"value-{at}" for at in range(20_000)}
    assert len(redact_secrets(message, {"kind": "Secret", "stringData": values})) <= MAX_MESSAGE
    assert time.process_time() - began < 3


def test_d14_a_value_that_is_part_of_the_mark_does_not_take_it_apart():
    secret = {"kind": "Secret", "stringData": {"a": "hunter2", "b": "redacted", "c": "red"}}
    assert redact_secrets("hunter2 is no red", secret) == "<redacted> is no <redacted>"


@each_row("shift", range(0, 40, 8))
def test_d14_of_a_long_message_no_beginning_of_a_value_is_shown(shift: int):
    value = "hunter2-" * 5
    secret = {"kind": "Secret", "stringData": {"a": value}}
    text = redact_secrets(" " * shift + value * 1000, secret)
    assert "hunter2" not in text


@pytest.mark.slow
@pytest.mark.parametrize(("count", "is_whole"), [(1500, False), (20_000, True)])
def test_s11_a_plan_of_an_object_of_equal_lines_does_not_hang(count: int, is_whole: bool):
    """A member's object of 100 kB held up the plan of the whole fleet for minutes."""
    before: Object = {"spec": [f"v{at % 101}" for at in range(count)]}
    after: Object = {"spec": [f"v{at * 7 % 101}" for at in range(count)]}
    began = time.process_time()
    lines = diff_lines(before, after)
    assert time.process_time() - began < 5
    assert (len(lines) == 2 * (count + 1)) is is_whole
