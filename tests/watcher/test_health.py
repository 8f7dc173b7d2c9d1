"""Watches in the health server and in the metrics: rule W11."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from prometheus_client import REGISTRY

from support.eventually import eventually, stays
from support.rigs.watcher import Rig
from support.servers.health_probes import read_probe

AGES = ("last_received_age_seconds", "last_event_age_seconds", "lag_seconds")


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"fleetbus_watcher_{name}", {"cluster": "alpha", **labels})


async def test_w11_a_server_that_is_down_is_no_reason_to_restart(rig: Rig, tmp_path: Path):
    port_file = tmp_path / "port"
    rig.start(port_file=port_file)
    await eventually(rig.checkpoint)
    await rig.servers.stop("alpha")
    await eventually(lambda: _is_failing(rig))

    async def health() -> int:
        return (await read_probe(port_file, "/healthz"))[0]

    await stays(200, health, timedelta(seconds=0.5))


async def _is_failing(rig: Rig) -> bool:
    return (await rig.status()).state == "failing"


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
    await eventually(lambda: (sample("last_event_age_seconds", **resource) or 0) >= aged + 0.05)
    rig.write("a")
    await eventually(rig.is_mirrored)
    assert (sample("last_event_age_seconds", **resource) or 0) < 5
    await rig.stop(task)
    for name in AGES:
        assert sample(name, **resource) is None
