"""The watcher as a process: heartbeats, probes, metrics, bad input; rules W9, W20, B15."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import ConfigError
from fleetbus.process.settings import load_settings
from fleetbus.watchers.resync import ResyncRequest, request_resync
from fleetbus_emulator.apiserver import Hang
from fleetbus_proto.events import Heartbeat, Incarnation
from fleetbus_proto.keys import KV_BUCKET, kv_incarnation
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import STREAM
from fleetbus_watcher.incarnation import claim_incarnation, has_moved
from fleetbus_watcher.main import main
from fleetbus_watcher.settings import WatcherSettings
from support.eventually import eventually, never
from support.processes.in_process_commands import status_of
from support.rigs.watcher import CONFIG_MAPS, Rig, rig_for
from support.rows import each_row
from support.servers.health_probes import read_probe


@pytest.mark.slow
async def test_ready_means_that_the_first_sync_is_over(rig: Rig, tmp_path: Path):
    rule = rig.cluster.faults.add(Hang(), verb="list", resource="configmaps")
    port_file = tmp_path / "port"
    rig.start(port_file=port_file, silence=timedelta(seconds=1))  # then it fails with a reason
    await eventually(lambda: rule.hits)
    status, text = await read_probe(port_file, "/readyz")
    assert (status, "first sync of v1/configmaps" in text) == (503, True)
    assert (await read_probe(port_file, "/healthz"))[0] == 200
    rule.remove()
    await eventually(lambda: _is_ready(port_file))
    _, metrics = await read_probe(port_file, "/metrics")
    assert 'fleetbus_watcher_events_total{cluster="alpha",resource="core/configmaps"}' in metrics


async def _is_ready(port_file: Path) -> bool:
    return (await read_probe(port_file, "/readyz"))[0] == 200


async def test_a_resource_that_fails_with_a_reason_does_not_keep_it_from_being_ready(
    rig: Rig, tmp_path: Path
):
    port_file = tmp_path / "port"
    await rig.servers.stop("alpha")
    rig.start(port_file=port_file)
    await eventually(lambda: _is_ready(port_file))


async def test_w9_heartbeats_live_an_hour_and_are_rare_while_nothing_happens(rig: Rig):
    async with rig.watching(resources=("configmaps",)):
        await eventually(rig.checkpoint)
        await eventually(lambda: _is_silent(rig, 0.6))  # once the last change of state is reported
        before = len(await rig.heartbeats())
        rig.write("a")
        await eventually(lambda: _beats(rig, before + 1))
        stored = [s for s in await rig.stored() if isinstance(s.message, Heartbeat)]
    assert {s.headers["Nats-TTL"] for s in stored} == {"1h"}
    assert len({s.headers["Nats-Msg-Id"] for s in stored}) == len(stored)


async def test_w9_an_idle_watcher_still_beats(rig: Rig):
    async with rig.watching(heartbeat_idle=timedelta(seconds=0.2)):
        await eventually(rig.checkpoint)
        await eventually(lambda: rig.cluster.open_watches == 1)
        before = len(await rig.heartbeats())
        await eventually(lambda: _beats(rig, before + 3))
        beat = (await rig.heartbeats())[-1]
    status = beat.resources[0]
    assert (beat.connected, beat.server_version != "") == (True, True)
    assert beat.platform == "linux/amd64"
    assert (status.resource, status.kind, status.state) == ("configmaps", "ConfigMap", "watching")
    assert status.last_received
    assert status.resource_version


async def test_w9_a_busy_watcher_beats_at_its_pace_and_not_after_every_event(rig: Rig):
    async with rig.watching(heartbeat_busy=timedelta(seconds=0.3)):
        await eventually(lambda: _beats(rig, 1))
        before, begun = len(await rig.heartbeats()), time.monotonic()
        for number in range(1000):
            rig.write(f"a{number % 10}", str(number))
            await asyncio.sleep(0)
        beats = len(await rig.heartbeats()) - before
        most = (time.monotonic() - begun) / 0.2 + 2  # a change of state may beat each 200 ms
    assert beats <= most


def test_a4_an_idle_healthy_cluster_never_looks_unreported():
    settings = load_settings(WatcherSettings, cluster="a")
    bookmarks, reported_within = timedelta(seconds=60), timedelta(seconds=90)
    assert bookmarks + settings.heartbeat_idle < reported_within


async def test_a4_an_idle_heartbeat_is_never_older_than_bookmark_and_beat(nats_url: str):
    """The defaults, scaled: three beats for each bookmark."""
    async with (
        rig_for(nats_url, bookmark_interval=timedelta(seconds=0.4)) as rig,
        rig.watching(heartbeat_idle=timedelta(seconds=0.13)),
    ):
        await eventually(lambda: rig.cluster.open_watches == 1)

        async def received() -> set[str]:
            beats = await rig.heartbeats()
            return {beat.resources[0].last_received for beat in beats if beat.resources}

        # More often than list and watch explain: heartbeats pass on what bookmarks report.
        before = len(await received())
        await eventually(lambda: _is_more(received, before + 2))


async def test_b15_a_watcher_waits_for_the_stream_and_for_the_bucket(rig: Rig):
    await rig.bus.request(f"$JS.API.STREAM.DELETE.{STREAM}")
    await rig.bus.request(f"$JS.API.STREAM.DELETE.KV_{KV_BUCKET}")
    rig.write("a")
    task = rig.start()
    await never(task.done, timedelta(seconds=0.3))
    await ensure_stream(rig.bus)
    await never(task.done, timedelta(seconds=0.3))
    await ensure_bucket(rig.bus)
    await eventually(rig.is_mirrored)


@pytest.mark.slow
async def test_b15_a_bus_that_was_wiped_is_filled_again(rig: Rig):
    rig.write("a")
    async with rig.watching():
        first = (await rig.ends())[0]
        await rig.bus.request(f"$JS.API.STREAM.DELETE.KV_{KV_BUCKET}")
        await ensure_bucket(rig.bus)
        rig.write("b")
        await eventually(lambda: _is_past(rig, first.incarnation.number))
        await eventually(rig.is_mirrored)


async def _is_past(rig: Rig, number: int) -> bool:
    return any(end.incarnation.number > number for end in await rig.ends())


@each_row(
    ("settings", "message"),
    [
        ({}, "FLEETBUS_WATCHER_CLUSTER"),
        ({"cluster": "Not a label"}, "DNS-1123"),
        ({"cluster": "a", "resources": ("po ds",)}, "not a resource name"),
        ({"cluster": "a", "heartbeat_busy": "soon"}, "HEARTBEAT_BUSY"),
        ({"cluster": "a", "resources": ({"resource": "*", "namespaces": ["x"]},)}, "narrowed"),
    ],
)
def test_bad_settings_are_reported_by_name(settings: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        load_settings(WatcherSettings, **settings)


def test_durations_are_read_as_charts_write_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_WATCHER_CLUSTER", "eu1")
    monkeypatch.setenv("FLEETBUS_WATCHER_SILENCE", "2m")
    monkeypatch.setenv("FLEETBUS_WATCHER_BACKOFF_FIRST", "250ms")
    monkeypatch.setenv("FLEETBUS_WATCHER_RESOURCES", '["pods",{"resource":"services"}]')
    settings = load_settings(WatcherSettings)
    assert settings.silence == timedelta(minutes=2)
    assert settings.backoff_first == timedelta(milliseconds=250)
    assert [selection.resource for selection in settings.resources] == ["pods", "services"]


async def test_a_kubeconfig_that_comes_late_or_half_written_is_waited_for(rig: Rig, tmp_path: Path):
    port_file, kubeconfig = tmp_path / "port", tmp_path / "kubeconfig"
    rig.start(port_file=port_file, kubeconfig=kubeconfig)
    status, text = await read_probe(port_file, "/readyz")
    assert status == 503
    assert f"kubeconfig: {kubeconfig}: cannot read the kubeconfig: No such file" in text
    kubeconfig.write_text("clusters: [")
    await eventually(lambda: _says(port_file, "invalid YAML"))
    kubeconfig.write_text(rig.config.document)
    await eventually(lambda: _is_ready(port_file))


async def _says(port_file: Path, expected: str) -> bool:
    return expected in (await read_probe(port_file, "/readyz"))[1]


async def test_two_clusters_do_not_mix(nats_url: str):
    async with rig_for(nats_url, "alpha") as alpha, rig_for(nats_url, "beta") as beta:
        alpha.write("a")
        beta.write("b")
        alpha.start()
        beta.start()
        await eventually(lambda: _count(alpha, 2))
        names = {(event.cluster, event.name) for event in await alpha.events()}
    assert names == {("alpha", "a"), ("beta", "b")}


async def _count(rig: Rig, number: int) -> bool:
    return len(await rig.ends()) >= number


async def _beats(rig: Rig, number: int) -> bool:
    return len(await rig.heartbeats()) >= number


async def _is_silent(rig: Rig, seconds: float) -> bool:
    before = len(await rig.heartbeats())
    await asyncio.sleep(seconds)  # the silence that is checked
    return len(await rig.heartbeats()) == before


async def _is_more(read: Callable[[], Awaitable[set[str]]], number: int) -> bool:
    return len(await read()) > number


def test_a_variable_that_is_no_setting_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FLEETBUS_WATCHER_TRANSFORM", "[]")
    assert status_of(main, ["--pool"]) == 2
    errors = capsys.readouterr().err
    assert "setting_unknown" in errors
    assert "FLEETBUS_WATCHER_TRANSFORM" in errors


async def test_w23_a_comparison_with_the_number_of_an_earlier_life_ends_no_later_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    """A heartbeat reads the record while another part of the watcher claims a new number."""
    numbers: list[int] = []
    is_slow, goes_on = asyncio.Event(), asyncio.Event()

    async def compare_late(kv: KeyValue, cluster: str, incarnation: Incarnation) -> bool:
        numbers.append(incarnation.number)
        if is_slow.is_set():
            is_slow.clear()
            await goes_on.wait()
        return await has_moved(kv, cluster, incarnation)

    monkeypatch.setattr("fleetbus_watcher.cluster_watcher.has_moved", compare_late)
    async with rig.watching():
        is_slow.set()
        rig.write("a")  # a heartbeat follows
        await eventually(lambda: not is_slow.is_set())
        first = numbers[-1]
        request = ResyncRequest(min_epoch=0, incarnation=first + 1)
        await request_resync(rig.bus, rig.kv, "alpha", parse_resource(CONFIG_MAPS), request)
        await eventually(lambda: numbers[-1] > first)
        with capture_logs() as logs:
            goes_on.set()
            rig.write("b")
            compared = len(numbers)
            await eventually(lambda: len(numbers) > compared)
            await eventually(rig.is_mirrored)
        assert [entry for entry in logs if entry["event"] == "cluster_failed"] == []


async def test_w23_a_heartbeat_during_a_claim_ends_no_later_life(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    comparisons, is_late = list[bool](), asyncio.Event()

    async def compare(kv: KeyValue, cluster: str, incarnation: Incarnation) -> bool:
        comparisons.append(await has_moved(kv, cluster, incarnation))
        return comparisons[-1]

    async def claim_late(kv: KeyValue, cluster: str, uid: str, least: int) -> Incarnation:
        before = comparisons.count(True)
        if before and not is_late.is_set():
            is_late.set()
            rig.write("a")
            await eventually(lambda: comparisons.count(True) > before)
        return await claim_incarnation(kv, cluster, uid, least)

    monkeypatch.setattr("fleetbus_watcher.cluster_watcher.has_moved", compare)
    monkeypatch.setattr("fleetbus_watcher.cluster_watcher.claim_incarnation", claim_late)
    async with rig.watching(heartbeat_idle=timedelta(milliseconds=100)):
        with capture_logs() as logs:
            await rig.kv.delete(kv_incarnation("alpha"))
            await eventually(lambda: True in comparisons and not comparisons[-1])
            await eventually(rig.is_mirrored)
        assert [entry["event"] for entry in logs].count("cluster_failed") == 1
