"""Watches, over everything that can happen to them: rules W1, W11, W13, W16, W19, B8, B11."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from nats.aio.msg import Msg

from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_emulator.apiserver import CutWatch, Expire, Fail
from fleetbus_proto.events import Event
from fleetbus_proto.keys import kv_checkpoint
from fleetbus_proto.subjects import Verb, parse_event_subject
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually, never
from support.rigs.watcher import CONFIG_MAPS, Rig, rig_for

WIDGETS = definition("example.com", "widgets", "Widget")

ROLES = "rbac.authorization.k8s.io/v1/clusterroles"
ROLES_KEY = ("rbac.authorization.k8s.io", "clusterroles")
POISON = "x" * 5000
"""A name that no subject can carry."""


def poison(rig: Rig) -> None:
    rig.cluster.create(ROLES, {"metadata": {"name": POISON}, "rules": []})


async def role_checkpoint(rig: Rig) -> Any:
    entry = await rig.kv.get(kv_checkpoint("alpha", *ROLES_KEY, ""))
    return json.loads(entry.value) if entry else None


async def test_w1_no_change_is_lost_over_cut_watches(rig: Rig):
    async with rig.watching():
        rig.cluster.faults.add(CutWatch(after_events=3), verb="watch", resource="configmaps")
        for number in range(40):
            rig.write(f"a{number % 7}", str(number))
            if number % 5 == 0:
                rig.write(f"b{number}")
                rig.remove(f"b{number}")
            await asyncio.sleep(0.01)  # the pace of the load
        rig.cluster.faults.clear()
        await eventually(rig.is_mirrored, timedelta(seconds=15))
        events = await rig.events()
    published = {(event.name, event.resource_version) for event in events}
    for commit in rig.cluster.history:
        if commit.resource == "configmaps":
            assert (commit.name, str(commit.rv)) in published
    assert len(rig.requests("list")) == 1


async def test_w1_a_watch_that_the_server_ends_is_resumed_without_a_list(rig: Rig):
    async with rig.watching():
        for number in range(3):
            await eventually(lambda: rig.cluster.open_watches == 1)
            rig.cluster.close_watches()
            rig.write(f"a{number}")
            await eventually(rig.is_mirrored)
        assert len(rig.requests("list")) == 1


@pytest.mark.parametrize("where", ["open", "stream"])
async def test_w19_an_expired_watch_lists_again(rig: Rig, where: Literal["open", "stream"]):
    rig.write("a")
    async with rig.watching():
        await eventually(lambda: rig.cluster.open_watches == 1)
        rig.cluster.faults.add(Expire(where), verb="watch", count=1)
        if where == "open":
            rig.cluster.close_watches()
        await eventually(lambda: _ends(rig, 2))
        rig.write("b")
        await eventually(rig.is_mirrored)
        first, second = await rig.ends()
        assert second.epoch.key > first.epoch.key


@pytest.mark.slow
async def test_w19_refusals_keep_the_version_and_honour_retry_after(rig: Rig):
    async with rig.watching():
        await eventually(lambda: rig.cluster.open_watches == 1)
        rig.cluster.faults.add(Fail(429, retry_after=timedelta(seconds=1)), verb="watch", count=1)
        rig.cluster.close_watches()
        await eventually(lambda: _was_reported(rig, "TooManyRequests"))  # for a second it holds
        rig.write("a")
        await eventually(rig.is_mirrored)
        refused, *_, again = rig.requests("watch")[1:]
        assert (again.time - refused.time) >= timedelta(seconds=1)
        assert again.query["resourceVersion"] == refused.query["resourceVersion"]
        assert len(rig.requests("list")) == 1


async def test_w19_a_watch_that_ends_at_once_is_not_asked_for_in_a_hot_loop(rig: Rig):
    async with rig.watching():
        rig.cluster.faults.add(CutWatch(after_events=0, mid_line=False), verb="watch")
        before = len(rig.requests("watch"))
        await never(lambda: len(rig.requests("watch")) - before >= 20, timedelta(seconds=0.6))


async def test_w19_an_api_server_that_is_down_at_start_is_a_state(rig: Rig):
    rig.write("a")
    await rig.servers.stop("alpha")
    task = rig.start()
    await eventually(lambda: _trouble(rig, "Unreachable"))
    assert not task.done()
    await rig.servers.start("alpha")
    await eventually(rig.is_mirrored)
    await eventually(lambda: _trouble(rig, ""))


async def test_w19_an_api_server_that_dies_and_comes_back_costs_no_list(rig: Rig):
    async with rig.watching():
        await rig.servers.stop("alpha")
        await eventually(lambda: _trouble(rig, "Unreachable"))
        rig.write("a")
        await rig.servers.start("alpha")
        await eventually(rig.is_mirrored)
        await eventually(lambda: _trouble(rig, ""))
        assert len(rig.requests("list")) == 1


async def test_w19_a_server_that_healed_is_asked_once_for_each_watch(rig: Rig):
    resources = ("configmaps", "services", "pods", "endpoints")
    async with rig.watching(resources=resources):
        await eventually(lambda: rig.cluster.open_watches == 4)
        rule = rig.cluster.faults.add(Fail(503))
        rig.cluster.close_watches()
        await eventually(lambda: rule.hits >= 12)
        rule.remove()
        before = len(rig.cluster.requests)
        await eventually(lambda: rig.cluster.open_watches == 4)
        await asyncio.sleep(0.3)  # longer than the longest pause here
        requests = [r for r in list(rig.cluster.requests)[before:] if r.path.endswith(resources)]
        # Without the fault it would have been a probe and a watch for each.
        assert len(requests) <= 2 * 8
        assert [len(rig.requests("list", plural)) for plural in resources] == [1, 1, 1, 1]


async def test_a_refused_resource_fails_with_its_reason_and_the_others_go_on(rig: Rig):
    rig.cluster.faults.add(Fail(403), verb="list", resource="services")
    async with rig.watching(resources=("services", "configmaps", "gadgets", "secrets")):
        rig.write("a")
        await eventually(rig.is_mirrored)
        await eventually(lambda: _reason(rig, "Forbidden", "services"))
        assert (await rig.status("gadgets")).reason == "NotFound"
        assert (await rig.status("secrets")).reason == "Denied"
        rig.cluster.faults.clear()
        await eventually(lambda: _reason(rig, "", "services"))


async def test_s1_secrets_are_never_on_the_bus(rig: Rig):
    rig.cluster.create("v1/secrets", {"metadata": {"name": "canary"}}, "default")
    async with rig.watching(resources=("*", "secret", "v1/secrets")):
        rig.cluster.create("v1/secrets", {"metadata": {"name": "canary2"}}, "default")
        rig.write("a")
        await eventually(rig.is_mirrored)
        assert await rig.events("secrets") == []
        assert rig.requests("list", "secrets") == []


async def test_w16_what_a_watch_lost_costs_one_epoch_and_is_made_good(rig: Rig):
    async with rig.watching(resources=("clusterroles",)):
        await eventually(lambda: role_checkpoint(rig))
        poison(rig)
        rig.cluster.delete(ROLES, None, POISON)
        await eventually(lambda: _ends(rig, 2))
        end = (await rig.ends())[-1]
        await eventually(lambda: _state(rig, "watching", "clusterroles"))
        assert not await rig.events("clusterroles")
        await eventually(lambda: _is_recorded(rig, end.epoch.id))


async def test_w16_what_stays_unreadable_is_listed_once_more_and_never_checkpointed(rig: Rig):
    settings: dict[str, Any] = {"resources": ("clusterroles",)}
    async with rig.watching(**settings):
        before = await eventually(lambda: role_checkpoint(rig))
        poison(rig)
        await eventually(lambda: len(rig.requests("list", "clusterroles")) == 2)
        await eventually(lambda: _state(rig, "failing", "clusterroles"))
        for name in ("a", "b", "c"):  # the watch goes on, and so do the heartbeats
            beats = len(await rig.heartbeats())
            rig.cluster.create(ROLES, {"metadata": {"name": name}, "rules": []})
            await eventually(lambda n=beats: _beats(rig, n + 1))
        assert len(rig.requests("list", "clusterroles")) == 2
        assert len(await rig.ends()) == 1
        assert (await rig.status("clusterroles")).reason == "Unreadable"
    assert await role_checkpoint(rig) == before
    rig.cluster.delete(ROLES, None, POISON)
    async with rig.watching(**settings):  # the restart meets the loss again, and lists
        await eventually(lambda: _state(rig, "watching", "clusterroles"))
        assert await rig.is_mirrored(ROLES)


async def test_w16_what_no_list_could_read_is_made_good_once_it_is_gone(rig: Rig):
    poison(rig)
    rig.start(resources=("clusterroles",))
    await eventually(lambda: len(rig.requests("list", "clusterroles")) == 2)
    await eventually(lambda: _state(rig, "failing", "clusterroles"))
    assert not await rig.ends()
    assert await role_checkpoint(rig) is None
    await eventually(lambda: rig.cluster.open_watches == 1)
    rig.cluster.delete(ROLES, None, POISON)
    await eventually(rig.ends)
    await eventually(lambda: _state(rig, "watching", "clusterroles"))


async def test_everything_that_discovery_offers_is_watched_less_the_deny_list(rig: Rig):
    async with rig.watching(resources=("*",)):
        await eventually(lambda: rig.status("deployments"))
        beat = (await rig.heartbeats())[-1]
    watched = {status.resource_key for status in beat.resources}
    assert {"core/pods", "apps/deployments", "rbac.authorization.k8s.io/roles"} <= watched
    assert not watched & {"core/secrets", "core/events", "coordination.k8s.io/leases"}


@pytest.mark.slow
async def test_w17_a_type_that_comes_is_watched_and_one_that_goes_is_left(
    rig: Rig,
):
    rig.timing = replace(rig.timing, second_discovery=timedelta(milliseconds=50))
    async with rig.watching(resources=("*",)):
        await eventually(lambda: rig.status("customresourcedefinitions"))
        rig.cluster.create(CRDS, WIDGETS)
        await eventually(lambda: _state(rig, "watching", "widgets"))
        rig.cluster.create("example.com/v1/widgets", {"metadata": {"name": "w"}}, "default")
        await eventually(lambda: rig.is_mirrored("example.com/v1/widgets"))
        rig.cluster.delete(CRDS, None, "widgets.example.com")
        await eventually(lambda: _is_unknown(rig, "widgets"))
        ends = await rig.ends("widgets")
        assert [(end.count, end.removed) for end in ends] == [(0, False), (0, True)]


async def test_b8_hostile_names_travel_and_are_read_back(rig: Rig):
    names = ["a b", "*", ">", "a.b_c:d", "x:y", "tab\tbell\x07", "é☃", "-"]
    roles = "rbac.authorization.k8s.io/v1/clusterroles"
    for name in names[:4]:
        rig.cluster.create(roles, {"metadata": {"name": name}, "rules": []})
    subjects: list[str] = []

    async def on_message(message: Msg) -> None:
        subjects.append(message.subject)

    await rig.bus.nc.subscribe("fleetbus.events.>", cb=on_message)
    async with rig.watching(resources=("clusterroles",)):
        for name in names[4:]:
            rig.cluster.create(roles, {"metadata": {"name": name}, "rules": []})
        await eventually(lambda: rig.is_mirrored(roles))
        events = await rig.events("clusterroles")
        await eventually(
            lambda: {parse_event_subject(subject).name for subject in subjects} == set(names)
        )
    assert {event.name for event in events} == set(names)


@pytest.fixture
async def small_bus(tmp_path: Path) -> AsyncGenerator[Rig]:
    """A NATS that takes messages up to 256 KiB."""
    async with (
        nats_server(store_dir=tmp_path, max_payload=256 * 1024) as server,
        rig_for(server.url) as opened,
    ):
        yield opened


async def test_b11_an_object_over_the_limit_goes_without_its_body_and_counts(small_bus: Rig):
    rig = small_bus
    rig.write("small")
    rig.write("large", "x" * 300_000)
    async with rig.watching():
        rig.write("grown")
        rig.write("grown", "y" * 400_000)
        await eventually(rig.is_mirrored)
        end = (await rig.ends())[0]
        events = await rig.events()
    assert end.count == 2
    bodies = {(e.name, e.resource_version): (e.object, e.degraded) for e in events}
    large = rig.truth()["large"]
    assert bodies["large", large] == (None, "oversized")
    assert bodies["grown", rig.truth()["grown"]] == (None, "oversized")
    assert bodies["small", rig.truth()["small"]][1] == ""


async def test_b3_two_replicas_store_each_change_once(rig: Rig):
    rig.write("a")
    async with rig.watching(replica="r1"):
        rig.start(replica="r2")
        await eventually(lambda: rig.cluster.open_watches == 2)
        for number in range(30):
            rig.write(f"a{number % 4}", str(number))
        await eventually(rig.is_mirrored)
        await eventually(lambda: _has_live(rig, 30))
        await never(lambda: _has_live(rig, 31))
        live = await _live(rig)
        numbers = {e.incarnation.number for e in live}
    assert len(live) == len({(e.uid, e.resource_version, e.verb) for e in live})
    assert len(numbers) == 1


async def _live(rig: Rig) -> list[Event]:
    return [event for event in await rig.events() if event.verb is not Verb.LISTED]


async def _has_live(rig: Rig, number: int) -> bool:
    return len(await _live(rig)) >= number


async def test_every_event_carries_the_headers_of_the_contract(rig: Rig):
    rig.write("a")
    async with rig.watching():
        rig.write("a", "b")
        await eventually(rig.is_mirrored)
        stored = await rig.stored()
    for each in stored:
        assert each.headers["fleetbus-format"] == "1"
        assert each.headers["ce-id"] == each.headers["Nats-Msg-Id"]
        if isinstance(each.message, Event):
            assert each.headers["ce-type"] == f"dev.fleetbus.object.{each.message.verb}"
    assert rig.truth(CONFIG_MAPS)


async def _ends(rig: Rig, number: int) -> bool:
    return len(await rig.ends()) >= number


async def _reason(rig: Rig, reason: str, plural: str = "configmaps") -> bool:
    status = await rig.status(plural)
    return status is not None and status.reason == reason


async def _was_reported(rig: Rig, reason: str) -> bool:
    beats = await rig.heartbeats()
    return any(status.reason == reason for beat in beats for status in beat.resources)


async def _state(rig: Rig, state: str, plural: str) -> bool:
    status = await rig.status(plural)
    return status is not None and status.state == state


async def _beats(rig: Rig, number: int) -> bool:
    return len(await rig.heartbeats()) >= number


async def _is_recorded(rig: Rig, epoch: int) -> bool:
    record = await role_checkpoint(rig)
    return record is not None and record["rank"]["id"] == epoch


async def _is_unknown(rig: Rig, plural: str) -> bool:
    return await rig.status(plural) is None


async def _trouble(rig: Rig, reason: str) -> bool:
    beats = await rig.heartbeats()
    return bool(beats) and beats[-1].reason == reason and beats[-1].connected == (not reason)
