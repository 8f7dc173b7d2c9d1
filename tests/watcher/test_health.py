"""A dead watch is noticed, by probes and in metrics: rule W11."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from eventually import eventually
from probes import read_probe
from prometheus_client import REGISTRY
from watcher_rig import Rig, rig_for

from fleetbus_devfleet.apiserver import HideBookmarks, StallWatch

Get = Callable[[str], Awaitable[tuple[int, str]]]
AGES = ("last_heard_age_seconds", "last_event_age_seconds", "lag_seconds")


def serving(rig: Rig, folder: Path, silence: float) -> Get:
    """A watcher, and its health server."""
    port_file = folder / "port"
    rig.start(
        port_file=port_file,
        silence=timedelta(seconds=silence),
        heartbeat_idle=timedelta(seconds=0.1),
    )
    return partial(read_probe, port_file)


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"fleetbus_watcher_{name}", {"cluster": "alpha", **labels})


async def test_w11_a_watch_that_stays_silent_over_reconnects_fails_the_liveness_probe(
    nats_url: str, tmp_path: Path
):
    bookmarks = timedelta(seconds=0.05)
    async with rig_for(nats_url, bookmark_interval=bookmarks) as rig:
        get = serving(rig, tmp_path, 0.5)
        await eventually(rig.checkpoint)
        record = await rig.checkpoint()
        rig.cluster.create("v1/services", {"metadata": {"name": "s"}, "spec": {}}, "default")
        await eventually(lambda: _moved(rig, record))  # by a bookmark: the server sends some
        hide = rig.cluster.faults.add(HideBookmarks(), verb="watch")
        stall = rig.cluster.faults.add(StallWatch(), verb="watch")
        rig.cluster.close_watches()
        assert (await get("/healthz"))[0] == 200
        text = await eventually(lambda: _failing(get))
        assert text == "watches: no sign of v1/configmaps over reconnects\n"
        hide.remove()
        stall.remove()
        await eventually(lambda: _is_well(get))


async def test_w11_a_server_without_bookmarks_is_no_reason_to_restart(rig: Rig, tmp_path: Path):
    rig.cluster.faults.add(HideBookmarks(), verb="watch")
    get = serving(rig, tmp_path, 0.1)
    await eventually(lambda: len(rig.probes()) >= 6)
    assert (await get("/healthz"))[0] == 200


async def test_w11_a_server_that_is_down_is_no_reason_to_restart(rig: Rig, tmp_path: Path):
    get = serving(rig, tmp_path, 0.3)
    await eventually(rig.checkpoint)
    await rig.servers.stop("alpha")
    await asyncio.sleep(1)
    assert (await get("/healthz"))[0] == 200


async def test_w11_ages_and_alarms_are_there_from_the_start_and_go_with_the_resource(rig: Rig):
    task = rig.start()
    await eventually(lambda: rig.cluster.open_watches == 1)
    resource = {"resource": "core/configmaps"}
    for name in ("events_lost", "etcd_restored", "cluster_replaced"):
        assert sample("alarms_total", alarm=name) is not None
    for name in AGES:
        assert 0 <= (sample(name, **resource) or 0) < 15
    for name in ("events", "epochs", "epochs_abandoned", "failures", "degraded", "unreadable"):
        assert sample(f"{name}_total", **resource) is not None
    await eventually(lambda: sample("in_flight_bytes") is not None)
    assert sample("in_flight_age_seconds") is not None
    aged = sample("last_event_age_seconds", **resource) or 0
    await asyncio.sleep(0.05)
    assert (sample("last_event_age_seconds", **resource) or 0) >= aged + 0.05
    rig.write("a")
    await eventually(rig.is_mirrored)
    assert (sample("last_event_age_seconds", **resource) or 0) < 5
    await rig.stop(task)
    for name in AGES:
        assert sample(name, **resource) is None


async def _moved(rig: Rig, record: Any) -> bool:
    return (await rig.checkpoint())["resourceVersion"] != record["resourceVersion"]


async def _failing(get: Get) -> str:
    status, text = await get("/healthz")
    return text if status == 503 else ""


async def _is_well(get: Get) -> bool:
    return (await get("/healthz"))[0] == 200
