"""A bus that stalls, stays away for long, or refuses: rules B4, B6, B13, S3."""

from __future__ import annotations

import asyncio
import functools
import signal
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from fleetbus.bus.jetstream import ensure_bucket, ensure_stream, stream_info
from fleetbus.bus.window import open_window
from fleetbus.errors import BusError
from fleetbus.watchers.resync import request_audit
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_proto.events import AuditPage
from support.eventually import eventually
from support.rigs.watcher import Rig, rig_for
from support.servers.restricted_nats import restricted_server


async def changes_and_published(rig: Rig) -> tuple[set[tuple[str, str]], list[tuple[str, str]]]:
    published = [(event.name, event.resource_version) for event in await rig.events()]
    commits = [c for c in rig.cluster.history if c.resource == "configmaps"]
    return {(c.name, str(c.rv)) for c in commits}, published


async def is_all_reported(rig: Rig) -> bool:
    changes, published = await changes_and_published(rig)
    return changes <= set(published)


def alarms() -> float:
    labels = {"cluster": "alpha", "alarm": "events_lost"}
    return REGISTRY.get_sample_value("fleetbus_watcher_alarms_total", labels) or 0.0


def failures() -> float:
    labels = {"cluster": "alpha", "resource": "core/configmaps"}
    return REGISTRY.get_sample_value("fleetbus_watcher_failures_total", labels) or 0.0


async def test_b4_b6_what_was_given_up_is_sent_again_from_the_checkpoint_and_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    patience = {"deadline": timedelta(seconds=0.1), "patience": timedelta(seconds=0.3)}
    quick = functools.partial(open_window, **patience)
    monkeypatch.setattr("fleetbus_watcher.main.open_window", quick)
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        rig_for(server.url) as rig,
        rig.watching(),
    ):
        await eventually(rig.checkpoint)
        before, lists = failures(), len(rig.requests("list"))
        server.process.send_signal(signal.SIGSTOP)
        try:
            for number in range(20):
                rig.write(f"a{number % 5}", str(number))
            await eventually(lambda: failures() > before)
        finally:
            server.process.send_signal(signal.SIGCONT)
        await eventually(lambda: is_all_reported(rig))
        _, published = await changes_and_published(rig)
        assert len(published) == len(set(published)), "a repeat has the same id"
        assert len(rig.requests("list")) == lists


@pytest.mark.slow
async def test_b13_a_bus_that_is_away_for_long_costs_no_event_and_no_list(tmp_path: Path):
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        rig_for(server.url, event_capacity=10_000) as rig,
        rig.watching(),
    ):
        await eventually(rig.checkpoint)
        server.kill()
        for number in range(3000):  # three windows full
            rig.write(f"a{number % 50}", str(number))
            if number % 100 == 0:
                await asyncio.sleep(0.01)  # the pace of the load
        await server.restart()
        # To read the stream again and again would keep the watcher from what it has to do.
        await eventually(lambda: _holds(rig, 3000), timedelta(seconds=30))
        await eventually(lambda: is_all_reported(rig))
        assert len(rig.requests("list")) == 1


@pytest.mark.slow
async def test_w9_an_alarm_while_the_bucket_is_away_is_claimed_once_it_is_back(rig: Rig):
    """A wiped NATS comes back in parts: first the stream, then the bucket."""
    async with rig.watching() as task:
        await eventually(rig.checkpoint)
        first = (await rig.ends())[-1].incarnation.number
        before = alarms()
        for name in ("KV_FLEETBUS_STATE", "FLEETBUS_EVENTS"):
            await rig.bus.request(f"$JS.API.STREAM.DELETE.{name}")
        await ensure_stream(rig.bus)
        rig.write("a")
        await eventually(lambda: alarms() > before)
        await ensure_bucket(rig.bus)
        rig.write("b")
        await eventually(lambda: _is_past(rig, first))
        await eventually(rig.is_mirrored)
        assert not task.done()


async def test_s3_a_watcher_needs_no_more_than_its_rights(tmp_path: Path):
    """Two of them, from the first list to a wiped stream."""
    async with (
        restricted_server(tmp_path, "alpha") as address,
        rig_for(f"nats://admin:p@{address}") as rig,
    ):
        rig.write("a")
        url = f"nats://w:p@{address}"
        tasks = [
            rig.start(url, replica=name, grant_patience=timedelta(seconds=0.2)) for name in "xy"
        ]
        await eventually(rig.is_mirrored)
        await eventually(lambda: rig.cluster.open_watches == 2)
        await eventually(rig.checkpoint)
        await request_audit(rig.bus, rig.kv, "alpha")
        await eventually(lambda: _is_audited(rig))
        first = (await rig.ends())[-1].incarnation.number
        await rig.bus.request("$JS.API.STREAM.DELETE.FLEETBUS_EVENTS")
        await ensure_stream(rig.bus)
        rig.write("b")
        await eventually(lambda: _is_past(rig, first))
        await eventually(rig.is_mirrored)
        assert not [task for task in tasks if task.done()]


async def _is_audited(rig: Rig) -> bool:
    return any(isinstance(stored.message, AuditPage) for stored in await rig.stored())


async def test_b13_a_watcher_that_may_not_publish_fails_at_once(tmp_path: Path):
    async with (
        restricted_server(tmp_path, "beta") as address,
        rig_for(f"nats://admin:p@{address}") as rig,
    ):
        task = rig.start(f"nats://w:p@{address}")
        async with asyncio.timeout(15):
            with pytest.raises(BusError, match="refuses"):
                await task
        rig.forget(task)


async def _holds(rig: Rig, number: int) -> bool:
    with suppress(BusError):  # it is still away
        info = await stream_info(rig.bus)
        return info is not None and info["state"]["messages"] >= number
    return False


async def _is_past(rig: Rig, number: int) -> bool:
    return any(end.incarnation.number > number for end in await rig.ends())
