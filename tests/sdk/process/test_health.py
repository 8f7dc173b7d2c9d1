"""/healthz, /readyz and /metrics over real HTTP."""

from __future__ import annotations

import asyncio
import pathlib
import socket
from collections.abc import AsyncGenerator
from datetime import timedelta

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from fleetbus.errors import ConfigError
from fleetbus.process.health import Health
from support.eventually import eventually
from support.servers.plain_http import http_client


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def health(registry: CollectorRegistry) -> Health:
    return Health(registry)


@pytest.fixture
async def client(health: Health) -> AsyncGenerator[httpx.AsyncClient]:
    async with (
        health.serve("127.0.0.1", 0) as port,
        http_client(f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        yield client


async def test_without_checks_a_process_is_alive_and_ready(client: httpx.AsyncClient):
    for path in ("/healthz", "/readyz"):
        answer = await client.get(path)
        assert (answer.status_code, answer.text) == (200, "ok\n")


async def test_a_failing_check_is_named_with_its_reason(health: Health, client: httpx.AsyncClient):
    wrong = "no list yet"
    health.ready_when("bus", lambda: "")
    health.ready_when("first-sync", lambda: wrong)
    assert not health.is_ready
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "first-sync: no list yet\n")
    assert (await client.get("/healthz")).status_code == 200
    wrong = ""
    assert (await client.get("/readyz")).status_code == 200
    assert health.is_ready


async def test_a_reason_is_shown_to_loopback_only(health: Health):
    """A problem may name addresses, and anybody who reaches the port of a pod may ask."""
    health.ready_when("store", lambda: "10.0.0.7 refused")
    request = make_mocked_request("GET", "/readyz").clone(remote="192.0.2.1")
    answer = await health._answer(request)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(answer, web.Response)
    assert (answer.status, answer.text) == (
        503,
        "store: failed; the reason is shown to loopback only\n",
    )


async def test_readiness_and_liveness_are_asked_apart(health: Health, client: httpx.AsyncClient):
    health.liveness("loop", -timedelta.resolution)
    assert (await client.get("/healthz")).text == "loop: no progress for 0 s\n"
    assert (await client.get("/readyz")).status_code == 200


async def test_w11_a_loop_that_stops_turning_makes_the_process_not_alive(
    health: Health, client: httpx.AsyncClient
):
    beat = health.liveness("watch", timedelta(milliseconds=500))
    assert (await client.get("/healthz")).status_code == 200

    async def is_dead() -> bool:
        return (await client.get("/healthz")).status_code == 503

    await eventually(is_dead)
    assert (await client.get("/healthz")).text.startswith("watch: no progress for ")
    health.liveness("other", timedelta(hours=1))()
    beat()
    assert (await client.get("/healthz")).status_code == 200


async def test_metrics_are_those_of_the_registry(
    client: httpx.AsyncClient, registry: CollectorRegistry
):
    Counter("things", "Things.", registry=registry).inc(3)
    answer = await client.get("/metrics")
    assert "things_total 3.0" in answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = await client.get("/metrics", headers=headers)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_another_path_is_answered_with_the_paths_there_are(client: httpx.AsyncClient):
    answer = await client.get("/")
    assert (answer.status_code, answer.text) == (404, "paths: /healthz /readyz /metrics\n")


async def test_the_port_is_reported_through_a_file(health: Health, tmp_path: pathlib.Path):
    async with health.serve("127.0.0.1", 0, tmp_path / "port") as port:
        assert (tmp_path / "port").read_text() == f"{port}\n"


async def test_a_port_that_is_taken_is_a_configuration_error(health: Health):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            async with health.serve("127.0.0.1", port):
                pass


async def test_a_port_file_that_cannot_be_written_ends_the_server(
    health: Health, tmp_path: pathlib.Path
):
    with pytest.raises(ConfigError, match="port file"):
        async with health.serve("127.0.0.1", 0, tmp_path / "no" / "port"):
            pass


async def test_the_log_says_where_it_listens(health: Health):
    with capture_logs() as logs:
        async with health.serve("127.0.0.1", 0) as port:
            pass
    assert [(line["host"], line["port"]) for line in logs] == [("127.0.0.1", port)]


async def test_the_metrics_count_the_tasks_that_have_not_ended():
    stop = asyncio.Event()
    # The registry of the process, as services have it.
    async with (
        Health().serve("127.0.0.1", 0) as port,
        http_client(f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        before = tasks_in((await client.get("/metrics")).text)
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(stop.wait())
            meanwhile = tasks_in((await client.get("/metrics")).text)
            stop.set()
        assert meanwhile == before + 20
        assert tasks_in((await client.get("/metrics")).text) == before


def tasks_in(metrics: str) -> float:
    (line,) = [
        each for each in metrics.splitlines() if each.startswith("fleetbus_event_loop_tasks")
    ]
    return float(line.split()[1])
