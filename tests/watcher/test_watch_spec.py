"""Watch specs from the hub, applied while the watcher runs: rules P6, W5, W6."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.bus.jetstream import call_jetstream, ensure_bucket
from fleetbus.watchers.resync import wake_watchers
from fleetbus.watchers.spec import WatchSpec, encode_spec
from fleetbus_proto.events import Heartbeat, WatchSet
from fleetbus_proto.keys import KV_BUCKET, kv_watch_spec
from fleetbus_proto.subjects import Verb
from fleetbus_watcher.settings import Selection
from support.eventually import eventually
from support.rigs.watcher import CONFIG_MAPS, QUICK_TIMING, Rig, rig_for

SOON = replace(QUICK_TIMING, crd_settles=timedelta(milliseconds=10))


@pytest.fixture
async def rig(nats_url: str) -> AsyncGenerator[Rig]:
    async with rig_for(nats_url, timing=SOON) as opened:
        yield opened


async def set_spec(rig: Rig, **spec: Any) -> None:
    """Write a spec as the projector does when the Cluster object changed."""
    await rig.kv.put(kv_watch_spec("alpha"), encode_spec(WatchSpec(**spec)))
    await wake_watchers(rig.bus, "alpha")


async def last(rig: Rig) -> Heartbeat | None:
    beats = await rig.heartbeats()
    return beats[-1] if beats else None


async def watches(rig: Rig, *plurals: str) -> bool:
    beat = await last(rig)
    states = [(s.resource, s.state) for s in beat.resources] if beat else []
    return states == [(plural, "watching") for plural in plurals]


async def has_reason(rig: Rig, reason: str) -> bool:
    beat = await last(rig)
    return beat is not None and beat.reason == reason


def counted(plural: str) -> float | None:
    """A series of a resource; there is none once it is not watched any more."""
    labels = {"cluster": "alpha", "resource": f"core/{plural}"}
    return REGISTRY.get_sample_value("fleetbus_watcher_epochs_total", labels)


@pytest.fixture
async def watched(rig: Rig) -> AsyncGenerator[Rig]:
    """A watcher of config maps with a checkpoint."""
    rig.write("a")
    async with rig.watching():
        await eventually(rig.checkpoint)
        yield rig


async def test_the_hubs_watch_list_counts_and_its_change_needs_no_restart(watched: Rig):
    await set_spec(watched, resources=("v1/namespaces", {"resource": "pods", "namespaces": ["x"]}))
    await eventually(lambda: watches(watched, "namespaces", "pods"))
    assert counted("configmaps") is None
    assert counted("namespaces") is not None
    await set_spec(watched)
    await eventually(lambda: watches(watched, "configmaps"))
    assert counted("configmaps") is not None
    assert len(watched.requests("list")) == 1  # it goes on at its checkpoint


@pytest.mark.slow
async def test_the_hubs_word_holds_when_the_bucket_is_lost(watched: Rig):
    await set_spec(watched, resources=("v1/namespaces",))
    await eventually(lambda: watches(watched, "namespaces"))
    incarnation = (await watched.heartbeats())[-1].incarnation.number
    await call_jetstream(watched.bus, f"STREAM.DELETE.KV_{KV_BUCKET}")
    await ensure_bucket(watched.bus)
    await wake_watchers(watched.bus, "alpha")

    async def has_begun_anew() -> bool:
        beat = (await watched.heartbeats())[-1]
        return beat.incarnation.number > incarnation and await watches(watched, "namespaces")

    await eventually(has_begun_anew)


async def test_suspended_closes_the_watches_and_resume_goes_on_at_the_checkpoint(watched: Rig):
    await eventually(lambda: watched.cluster.open_watches == 1)
    await set_spec(watched, suspended=True)
    await eventually(lambda: has_reason(watched, "Suspended"))
    await eventually(lambda: watched.cluster.open_watches == 0)
    beat = (await watched.heartbeats())[-1]
    assert (beat.connected, beat.watch_set) == (False, None)
    before = len(watched.cluster.requests)
    watched.write("b")
    assert len(watched.cluster.requests) == before
    await set_spec(watched, suspended=False)
    await eventually(watched.is_mirrored)
    await eventually(lambda: has_reason(watched, ""))
    assert len(watched.requests("list")) == 1
    assert [event.verb for event in await watched.events() if event.name == "b"] == [Verb.ADDED]


async def test_a_watcher_that_starts_while_it_is_suspended_asks_nothing_of_the_cluster(rig: Rig):
    await set_spec(rig, suspended=True)
    rig.write("a")
    before = len(rig.cluster.requests)
    rig.start()
    await eventually(lambda: has_reason(rig, "Suspended"))
    assert len(rig.cluster.requests) == before
    await set_spec(rig)
    await eventually(rig.is_mirrored)


async def test_invalid_entries_are_reported_by_name_and_the_rest_works(watched: Rig):
    bad = ("po ds", {"resource": "services", "colour": "red"}, 7)
    await set_spec(watched, resources=("v1/namespaces", *bad), deny=("events",))
    await eventually(lambda: watches(watched, "namespaces"))
    beat = (await watched.heartbeats())[-1]
    names = [text.partition(":")[0] for text in beat.invalid]
    assert names == ["'po ds'", "'services'", "'7'", "'events'"]
    assert "colour" in beat.invalid[1]
    assert beat.watch_set is None  # nobody knows what was meant, so nothing is dropped for it
    assert (
        REGISTRY.get_sample_value("fleetbus_watcher_refused_entries", {"cluster": "alpha"})
        == len(bad) + 1
    )
    await set_spec(watched, resources=("v1/namespaces",))

    async def is_mended() -> bool:
        beat = await last(watched)
        return beat is not None and not beat.invalid and beat.watch_set == WatchSet()

    await eventually(is_mended)


async def test_a_setting_that_the_hub_replaces_is_logged_and_reported(rig: Rig):
    with capture_logs() as logs:
        await set_spec(rig, resources=("namespaces", {"resource": "pods", "namespaces": ["a"]}))
        rig.start(resources=("configmaps",))

        async def reported() -> list[str]:
            beat = await last(rig)
            return beat.overridden if beat is not None else []

        (warning,) = await eventually(reported)
        assert warning.startswith("FLEETBUS_WATCHER_RESOURCES (configmaps) by spec.resources")
        assert warning.endswith(" (namespaces, pods (narrowed))")
        # The same as the setting, or nothing: there is nothing to tell.
        await set_spec(rig, resources=("configmaps",), deny=("core/events",))
        await eventually(lambda: is_silent(reported))
    warned = [line for line in logs if line["event"] == "watch_setting_replaced"]
    assert [(line["setting"], line["replaced_by"]) for line in warned] == [
        ("FLEETBUS_WATCHER_RESOURCES", "spec.resources of the Cluster alpha, or of its provider")
    ]


async def is_silent(reported: Callable[[], Awaitable[list[str]]]) -> bool:
    return not await reported()


async def test_p6_a_name_that_is_not_served_leaves_in_doubt_only_what_is_not_served(rig: Rig):
    async def known() -> Heartbeat | None:
        beat = await last(rig)
        return beat if beat is not None and beat.watch_set is not None else None

    rig.start(resources=("configmaps", "widgets"))
    beat = await eventually(known)
    assert beat is not None
    assert beat.watch_set is not None
    assert beat.watch_set.may_hold("example.com/widgets", "")
    assert not beat.watch_set.may_hold("core/pods", "")
    assert [s.resource for s in beat.resources if s.reason == "NotFound"] == ["widgets"]


async def test_p6_everything_less_the_deny_list_of_the_cluster(rig: Rig):
    await set_spec(rig, resources=("*",), deny=("core/configmaps",))
    rig.start(lists_at_once=20)

    async def statuses() -> set[str]:
        beat = await last(rig)
        return {s.resource_key for s in beat.resources} if beat else set()

    await eventually(statuses)
    keys = await statuses()
    assert {"core/pods", "core/events"} <= keys
    assert keys.isdisjoint({"core/configmaps", "core/secrets"})
    beat = await last(rig)
    assert beat is not None
    assert beat.watch_set == WatchSet(all=True, deny=["core/configmaps", "core/secrets"])


async def test_w6_w5_two_selections_of_one_resource_are_two_scopes_with_their_own_checkpoints(
    rig: Rig,
):
    rig.cluster.create(CONFIG_MAPS, {"metadata": {"name": "a", "labels": {"app": "x"}}}, "default")
    rig.cluster.create(CONFIG_MAPS, {"metadata": {"name": "b", "labels": {"app": "y"}}}, "default")
    selections = (
        {"resource": "configmaps", "labelSelector": "app=x"},
        {"resource": "configmaps", "fieldSelector": "metadata.name=b"},
    )
    async with rig.watching(resources=selections):

        async def are_recorded() -> bool:
            scopes = {end.scope for end in await rig.ends()}
            keys = [f"alpha.checkpoint.core.configmaps.{scope}" for scope in scopes]
            return len(keys) == 2 and all([await rig.kv.get(key) for key in keys])

        await eventually(are_recorded)
        rig.remove("b")
        await eventually(lambda: _has_left(rig, "b"))
        rig.cluster.patch(CONFIG_MAPS, "default", "a", {"metadata": {"labels": {"app": "z"}}})
        await eventually(lambda: _has_left(rig, "a"))
    assert {event.name: event.scope for event in await rig.events()}.keys() == {"a", "b"}
    assert len({event.scope for event in await rig.events()}) == 2


async def _has_left(rig: Rig, name: str) -> bool:
    return any(event.left_selection and event.name == name for event in await rig.events())


async def test_p6_an_entry_beside_everything_narrows_its_type_and_no_other(rig: Rig):
    for namespace in ("default", "kube-system"):
        for gvr in (CONFIG_MAPS, "v1/services"):
            spec = {"spec": {"ports": [{"port": 80}]}} if gvr == "v1/services" else {}
            rig.cluster.create(gvr, {"metadata": {"name": "a"}, **spec}, namespace)
    narrowed = Selection(resource=CONFIG_MAPS, fieldSelector="metadata.namespace!=kube-system")
    rig.start(resources=(narrowed, Selection(resource="*")))

    await eventually(lambda: rig.ends("configmaps"))
    await eventually(lambda: rig.ends("services"))

    assert {event.namespace for event in await rig.events("configmaps")} == {"default"}
    namespaces = {event.namespace for event in await rig.events("services")}
    assert namespaces >= {"default", "kube-system"}
    assert len(rig.requests("list")) == 1
    # Else what a wider entry had brought into the snapshot would stay there.
    await eventually(lambda: leaves_out(rig, "core/configmaps"))


async def leaves_out(rig: Rig, resource: str) -> bool:
    """Whether the watcher reports that it watches all of the others, but not of this one."""
    beat = await last(rig)
    watch_set = beat.watch_set if beat else None
    if watch_set is None:
        return False
    return watch_set.may_hold("core/services", "") and not watch_set.may_hold(resource, "")
