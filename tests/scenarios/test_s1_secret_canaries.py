"""S1: no secret on the bus, in the stores, in logs, metrics or answers, whatever goes wrong.

Services run on servers of their own while lists are refused, watches cut, objects unreadable,
writes denied with the secret in the text, NATS and Valkey killed. Then everything that was
written anywhere is searched. `FLEETBUS_TEST_CANARIES=10000` plants the full number.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import traceback
from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import prometheus_client
import pytest
import yaml

from fleetbus.errors import ConfigError, FleetbusError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, read_kube_config
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.process.logs import set_up_logs
from fleetbus_devfleet.processes.servers import NatsServer, ValkeyServer, nats_server, valkey_server
from fleetbus_distributor.main import run as run_distributor
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_emulator.apiserver import CutWatch, Fail
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.hostile.objects import NO_EVENTS, corpus, watch_line
from support.hostile.secret_canaries import (
    CANARY,
    MAPS,
    RULES,
    VISIBLE,
    hits,
    hits_below,
    is_visible,
    planted,
)
from support.hostile.server import HostileServer
from support.logs import reset_logs
from support.rigs.fleet import Rig, fleet_rig
from support.rigs.query_api import served
from support.servers.plain_http import http_client

COUNT = int(os.environ.get("FLEETBUS_TEST_CANARIES", "300"))
SEED = int(os.environ.get("FLEETBUS_TEST_SEED", "4711"))
SOON = timedelta(seconds=20 + COUNT / 100)
MEMBER, HUB, ODD = "t1", "t4", "odd"
WATCHED = ("secrets", MAPS, "v1/pods", "apps/v1/deployments")
KEYS = ("core/secrets", "core/configmaps", "core/pods", "apps/deployments")
BAD_KEY = f"""
current-context: x
clusters: [{{name: x, cluster: {{server: https://127.0.0.1:1}}}}]
contexts: [{{name: x, context: {{cluster: x, user: x}}}}]
users: [{{name: x, user: {{client-key-data: {CANARY}}}}}]
"""
MCR: dict[str, Any] = {
    "metadata": {"name": "spread", "namespace": "default", "labels": {"note": VISIBLE}},
    "spec": {
        "template": {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "spread", "namespace": "default"},
            "stringData": {"password": CANARY},
            "data": {"token": base64.b64encode(CANARY.encode()).decode()},
        },
        "placement": {"clusters": [{"name": MEMBER}]},
    },
}


@pytest.fixture
def logs() -> Generator[io.StringIO]:
    """The log output of the services at the most verbose level."""
    written = io.StringIO()
    with contextlib.redirect_stderr(written):
        set_up_logs("json", "debug")
    yield written
    reset_logs()


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncGenerator[NatsServer]:
    async with nats_server(store_dir=tmp_path / "nats", max_payload=2**20) as server:
        yield server


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[ValkeyServer]:
    async with valkey_server(dir=tmp_path / "valkey", appendonly=True) as server:
        yield server


@pytest.fixture
async def fleet(tmp_path: Path, bus: NatsServer, store: ValkeyServer) -> AsyncGenerator[Rig]:
    nats_url = bus.url.replace("//", f"//user:{CANARY}@")
    valkey_url = store.url.replace("//", f"//default:{CANARY}@")
    async with fleet_rig(
        *(MEMBER, HUB),
        folder=tmp_path,
        nats_url=nats_url,
        valkey_url=valkey_url,
        hub=HUB,
        has_agents=True,
    ) as rig:
        for definition in crds():
            rig.clusters[HUB].create(CRDS, definition)
        rig.clusters[HUB].create(MULTI_CLUSTER_RESOURCES, MCR)
        rig.clusters[MEMBER].restore(planted(Random(SEED), COUNT))
        yield rig


def add_faults(rig: Rig) -> None:
    """Let the API server of the member fail in several ways from the start on."""
    faults = rig.clusters[MEMBER].faults
    faults.add(Fail(403), verb="list", resource="pods", count=2)
    faults.add(Fail(500), verb="list", resource="secrets", count=1)
    faults.add(Fail(401), verb="watch", resource="secrets", count=3)
    faults.add(CutWatch(after_events=1), verb="watch", count=3)
    encoded = base64.b64encode(CANARY.encode()).decode()
    denied = f'admission webhook "w" denied the request: Invalid value: "{CANARY}" or {encoded}'
    faults.add(Fail(403, message=denied), resource="secrets", verb="patch")


def add_odd(rig: Rig, server: HostileServer) -> None:
    """Let the hostile server be a member; its token is a secret."""
    kubeconfig = yaml.safe_load(rig.kubeconfig.read_text())
    odd_config = json.loads(server.config.document)
    odd_config["users"][0]["user"]["token"] = CANARY
    for section in ("clusters", "contexts", "users"):
        kubeconfig[section].append(odd_config[section][0] | {"name": ODD})
    kubeconfig["contexts"][-1]["context"] = {"cluster": ODD, "user": ODD}
    rig.kubeconfig.write_text(yaml.safe_dump(kubeconfig))


def start(rig: Rig) -> None:
    settings: dict[str, Any] = {"transforms": RULES, "heartbeat_busy": timedelta(seconds=0.3)}
    rig.start_watcher(MEMBER, resources=WATCHED, secrets=True, **settings)
    rig.start_watcher(HUB, resources=(MULTI_CLUSTER_RESOURCES, CLUSTER_RESOURCE, MAPS), **settings)
    rig.start_watcher(ODD, resources=(MAPS,), **settings)
    rig.start_reconciler()
    rig.start("distributor", run_distributor(rig.shared, DistributorSettings()))


@pytest.mark.slow
async def test_s1_g6_no_canary_leaves_its_cluster_whatever_goes_wrong(
    fleet: Rig,
    bus: NatsServer,
    store: ValkeyServer,
    tmp_path: Path,
    logs: io.StringIO,
    caplog: pytest.LogCaptureFixture,
):
    small = [each for each in corpus() if each.is_framed and len(each.body) < 2**21]
    add_faults(fleet)
    hostile = corpus("w", 300_000)[::5]
    items = [each.body for each in (*small, hostile[0])]
    async with HostileServer(items, version="400000").serve() as odd:
        add_odd(fleet, odd)
        start(fleet)
        await eventually(lambda: is_denied(fleet), SOON)
        odd.say(*(line for line in NO_EVENTS.values() if len(line) < 2**21))
        odd.say(*(watch_line(each.body, b"ADDED") for each in hostile))
        await eventually(lambda: has_rows(fleet), SOON)
        await break_stores(fleet, bus, store, logs)
        async with served(fleet.shared.redis_url, tmp_path) as url:
            answers = await asked(url)
        await fleet.aclose()
    leaks = hits("answers", answers)
    leaks += hits("metrics", prometheus_client.generate_latest())
    leaks += hits("logs", logs.getvalue()) + hits("library logs", caplog.text)
    leaks += hits(
        "status", json.dumps(fleet.clusters[HUB].list(MULTI_CLUSTER_RESOURCES)[0]["status"])
    )
    leaks += hits_below(tmp_path / "nats") + hits_below(tmp_path / "valkey")
    assert not leaks, f"seed {SEED}: {len(leaks)} hits, the first ones: {leaks[:5]}"
    # The search is not blind, and what had to go wrong did.
    assert VISIBLE in answers
    assert is_visible(tmp_path / "nats")
    assert is_visible(tmp_path / "valkey")
    reported = logs.getvalue()
    for trouble in ("Forbidden", "object_unreadable", "batch_failed", "Unauthorized"):
        assert trouble in reported, trouble


def is_denied(rig: Rig) -> bool:
    return "admission webhook" in json.dumps(
        rig.clusters[HUB].list(MULTI_CLUSTER_RESOURCES)[0].get("status", {})
    )


async def has_rows(rig: Rig) -> bool:
    """Whether the snapshot holds what may be seen of the member, and of the odd one."""
    freshness = [await rig.reader.freshness([MEMBER], key) for key in KEYS]
    if not all(each[MEMBER].is_complete for each in freshness):
        return False
    for name in ("h-0", "w-0"):
        if await rig.reader.get(ODD, "core/configmaps", "default", name) is None:
            return False
    return True


async def break_stores(rig: Rig, bus: NatsServer, store: ValkeyServer, logs: io.StringIO) -> None:
    """Kill both while Secrets change, and wait until the last change has come through."""
    store.kill()
    write(rig, "while the store is away")
    await eventually(lambda: "batch_failed" in logs.getvalue(), SOON)
    bus.kill()
    write(rig, "while both are away")
    await store.restart()
    await bus.restart()
    await eventually(lambda: has_secret(rig, "while-both-are-away"), SOON)


def write(rig: Rig, when: str) -> None:
    metadata = {"name": when.replace(" ", "-"), "namespace": "default"}
    rig.clusters[MEMBER].create("v1/secrets", {"metadata": metadata, "stringData": {"k": CANARY}})


async def has_secret(rig: Rig, name: str) -> bool:
    with contextlib.suppress(Exception):  # the store is only just back
        return await rig.reader.get(MEMBER, "core/secrets", "default", name) is not None
    return False


async def asked(url: str) -> str:
    """All that the query API has to say."""
    answers: list[str] = []
    async with http_client(url, timeout=30) as client:
        paths = ["/fleet/v1/clusters", *(f"/fleet/v1/clusters/{c}" for c in (MEMBER, HUB, ODD))]
        for resource in ("secrets", "configmaps", "pods", "deployments", "multiclusterresources"):
            paths += [f"/fleet/v1/resources/{resource}?limit=1000", f"/v1/list?resource={resource}"]
            paths += [f"/fleet/v1/resources/{resource}?fieldSelector=data.k={CANARY[:6]}"]
        paths += [
            f"/fleet/v1/objects/{MEMBER}/secrets/default/{n}"
            for n in ("while-both-are-away", "none")
        ]
        for path in paths:
            answer = await client.get(path)
            assert answer.status_code < 500, answer.text
            answers.append(answer.text)
    return "\n".join(answers)


@pytest.mark.parametrize(
    "text",
    [
        f"users: [{{name: x, user: {{token: {CANARY}}}}}, {{]",
        f"users:\n- name: x\n  user:\n    token: '{CANARY}\n",
        f"{CANARY}: : :",
        f"users: {CANARY}",
        f"- {CANARY}",
        f'{{"users":[{{"name":"x","user":{{"token":["{CANARY}"]}}}}],"contexts":5}}',
        BAD_KEY,
    ],
)
async def test_s1_g6_no_error_about_a_kubeconfig_quotes_it(tmp_path: Path, text: str):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    reported = ""
    try:
        config: KubeConfig = read_kube_config(path)
        async with KubeClient(config) as client:
            await client.get_json("/version")
    except (ConfigError, FleetbusError) as e:
        reported = "".join(traceback.format_exception(e))
    assert reported, "it was accepted"
    assert not hits("error", reported)
