"""`fleetbus doctor --bundle`: everything for a bug report, and no secret."""

from __future__ import annotations

import asyncio
import io
import json
import stat
import tarfile
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_all
from fleetbus.errors import ConfigError
from fleetbus.reconcile import Request
from fleetbus.workqueue import Add
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_cli.bundle.file import clean_lines
from fleetbus_cli.doctor.doctor import run_doctor
from fleetbus_emulator.apiserver import Cluster, serve
from support.api.chart import crds
from support.hostile.secret_canaries import CANARY, VISIBLE
from support.logs import reset_logs
from support.stores.snapshot import Snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

NAMESPACE = "fleetbus"
PARTS = {
    "README.txt",
    "versions.json",
    "findings.json",
    "nats.json",
    "store.json",
    "queues.json",
    "clusters.json",
    "hub/version.json",
    "hub/clusters.json",
    "hub/multiclusterresources.json",
    "hub/workloads.json",
    f"hub/events-{NAMESPACE}.json",
    "logs/projector-0-projector.log",
    "logs/projector-0-projector-previous.log",
}


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncGenerator[Path]:
    """The kubeconfig of a hub in whose objects secrets are planted."""
    cluster = Cluster("hub")
    for crd in crds():
        cluster.create("apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    _plant(cluster)
    async with serve([cluster]) as servers:
        kubeconfig = tmp_path / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        yield kubeconfig


def _plant(cluster: Cluster) -> None:
    cluster.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
    env = [
        {"name": "FLEETBUS_NATS_URL", "value": f"nats://u:{CANARY}@{VISIBLE}:4222"},
        {"name": "FLEETBUS_SHARDS", "value": "4"},
        {"name": "MINE", "value": CANARY},
    ]
    container = {"name": "projector", "image": "fleetbus:1", "env": env}
    labels = {"app.kubernetes.io/part-of": "fleetbus"}
    annotations = {"note": CANARY}
    metadata = {"name": "projector-0", "labels": labels, "annotations": annotations}
    pod = cluster.create(
        "v1/pods", {"metadata": metadata, "spec": {"containers": [container]}}, NAMESPACE
    )
    state = {"name": "projector", "restartCount": 1, "ready": True, "image": "x", "imageID": ""}
    cluster.update_status("v1/pods", {**pod, "status": {"containerStatuses": [state]}})
    template = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "web"},
        "data": {"k": CANARY},
    }
    cluster.create(
        "fleetbus.dev/v1alpha1/multiclusterresources",
        {
            "metadata": {"name": "web"},
            "spec": {"template": template, "placement": {"clusters": [{"name": VISIBLE}]}},
        },
        "default",
    )
    cluster.create(
        "v1/events",
        {
            "metadata": {"name": "e1"},
            "involvedObject": {"kind": "Pod", "name": "projector-0", "namespace": NAMESPACE},
            "message": f"{VISIBLE}: password={CANARY} is wrong",
            "reason": "Failed",
        },
        NAMESPACE,
    )


def read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        return {
            member.name.removeprefix("fleetbus-bundle/"): _text(tar.extractfile(member))
            for member in tar.getmembers()
        }


def _text(file: Any) -> str:
    assert isinstance(file, io.BufferedReader)
    return file.read().decode()


@pytest.fixture
async def fleet(redis: Redis, nats_url: str, valkey_url: str) -> dict[str, str]:
    """The addresses of a bus, a snapshot of one cluster, and a queue with one request."""
    async with connected(nats_url, name="test") as bus:
        await ensure_all(bus)
    await Snapshot(redis).set_up("eu1")
    await RedisQueue(redis, "copier").add([Add(Request("copier", "eu1", "default", "web"))])
    return {"nats_url": nats_url, "redis_url": valkey_url}


@contextmanager
def given_logs_back() -> Generator[None]:
    try:
        yield
    finally:
        reset_logs()


def bundle(file: Path, fleet: dict[str, str], kubeconfig: Path | None = None) -> int:
    with given_logs_back():
        return run_doctor(
            "table",
            nats_url=fleet["nats_url"],
            redis_url=fleet["redis_url"],
            hub=(kubeconfig, ""),
            bundle=file,
        )


async def test_s1_a_bundle_has_every_part_and_no_secret(
    fleet: dict[str, str], hub: Path, tmp_path: Path
):
    file = tmp_path / "bundle.tar.gz"
    await asyncio.to_thread(bundle, file, fleet, hub)
    found = read(file)
    assert found.keys() >= PARTS
    whole = "\n".join(found.values())
    assert CANARY not in whole
    assert VISIBLE in found["hub/workloads.json"], "the host of an address is shown"
    assert VISIBLE in found["hub/multiclusterresources.json"]
    assert VISIBLE in found[f"hub/events-{NAMESPACE}.json"]
    assert '"4"' in found["hub/workloads.json"], "settings of fleetbus are shown"
    assert json.loads(found["queues.json"])["copier"]["depth"] == {"eu1 LIVE": 1}
    assert "FLEETBUS_EVENTS" in json.loads(found["nats.json"])
    assert "eu1" in json.loads(found["clusters.json"])
    assert json.loads(found["versions.json"])["release"]["version"]
    assert all(name in found["README.txt"] for name in PARTS - {"README.txt"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.slow
async def test_what_cannot_be_read_is_named_and_the_rest_is_written(
    fleet: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    file = tmp_path / "bundle.tar.gz"
    away = {**fleet, "nats_url": f"nats://u:{CANARY}@127.0.0.1:1"}
    assert await asyncio.to_thread(bundle, file, away) == 1
    found = read(file)
    assert "Not in it:\nNATS: " in found["README.txt"]
    assert "the hub: no hub is set" in found["README.txt"]
    assert "store.json" in found
    assert CANARY not in "\n".join(found.values())


def test_a_file_that_exists_is_kept_and_nothing_is_asked(tmp_path: Path):
    file = tmp_path / "bundle.tar.gz"
    file.write_text("mine")
    away = {"nats_url": "nats://127.0.0.1:1", "redis_url": "redis://127.0.0.1:1"}
    with pytest.raises(ConfigError, match="already exists; name another file"):
        bundle(file, away)
    assert file.read_text() == "mine"
    with pytest.raises(ConfigError, match="there is no folder"):
        bundle(tmp_path / "no" / "b", away)


def test_s1_a_log_line_loses_its_credentials_and_keeps_the_rest():
    lines = [f'{{"event": "x", "token": "{CANARY}"}}', f"Authorization: Bearer {CANARY}-{CANARY}"]
    cleaned = clean_lines([*lines, "plain words"])
    assert CANARY not in cleaned
    assert cleaned.endswith("plain words\n")
