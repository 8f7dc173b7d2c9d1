"""The process: where it listens, how it tells of itself, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI

from fleetbus.errors import ConfigError
from fleetbus.process.settings import SharedSettings
from fleetbus_query_api.main import main, run
from fleetbus_query_api.serve import listen, serve
from fleetbus_query_api.settings import QueryApiSettings
from support.eventually import eventually
from support.processes.in_process_commands import one_line, status_of
from support.rows import each_row
from support.servers.plain_http import http_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from support.rigs.query_api import QueryApi

_START = timedelta(seconds=30)
COMMAND = Path(sys.executable).parent / "fleetbus-query-api"


UNPROTECTED: list[tuple[dict[str, Any], str]] = [
    ({"authentication": "none"}, "anybody could read the fleet"),
    ({"authentication": "none", "tls_terminated": True}, "anybody could read the fleet"),
    ({}, "clear text"),
    ({"tls_cert_file": "a.crt"}, "set both or none"),
    ({"tls_key_file": "a.key"}, "set both or none"),
    ({"tls_terminated": True, "tls_cert_file": "a", "tls_key_file": "b"}, "set one of them"),
]


@each_row(("settings", "message"), UNPROTECTED)
def test_a1_it_refuses_to_listen_beyond_loopback_without_a_token_and_tls(
    settings: dict[str, Any], message: str
):
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):  # noqa: S104 -- refused
        with pytest.raises(ConfigError, match=message):
            listen(QueryApiSettings(host=host, **settings))


def test_the_command_refuses_it_with_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FLEETBUS_QUERY_API_HOST", "0.0.0.0")  # noqa: S104 -- refused
    monkeypatch.setenv("FLEETBUS_QUERY_API_AUTHENTICATION", "none")
    assert status_of(main, []) == 2
    assert "FLEETBUS_QUERY_API_HOST" in one_line(capsys)


async def test_a_port_in_use_is_one_message(api: QueryApi):
    port = int(api.url.rpartition(":")[2])

    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
        await run(SharedSettings(), QueryApiSettings(port=port, authentication="none"))


@pytest.mark.slow
async def test_the_command_serves_tells_its_health_and_ends_on_sigterm(
    valkey_url: str, tmp_path: Path
):
    ports = {"FLEETBUS_QUERY_API_PORT_FILE": "api", "FLEETBUS_HEALTH_PORT_FILE": "health"}
    env = {name: str(tmp_path / file) for name, file in ports.items()}
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        env={
            **os.environ,
            "FLEETBUS_REDIS_URL": valkey_url,
            "FLEETBUS_QUERY_API_AUTHENTICATION": "none",
            **env,
        },
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        api, health = tmp_path / "api", tmp_path / "health"
        await eventually(lambda: api.exists() and health.exists(), within=_START)
        async with http_client() as client:
            base = f"http://127.0.0.1:{api.read_text().strip()}"
            probe = f"http://127.0.0.1:{health.read_text().strip()}"
            assert (await client.get(f"{base}/fleet/v1/clusters")).status_code == 503
            assert (await client.get(f"{probe}/healthz")).status_code == 200

            async def is_reported_empty() -> bool:
                ready = await client.get(f"{probe}/readyz")
                return ready.status_code == 503 and "the store is empty" in ready.text

            await eventually(is_reported_empty)
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in errors


@contextlib.asynccontextmanager
async def slow_server(
    **options: Any,
) -> AsyncGenerator[tuple[asyncio.Task[None], httpx.AsyncClient, Gate]]:
    """A server whose one path answers when the gate is opened; its task, a client, the gate."""
    app, gate = FastAPI(), Gate(asyncio.Event(), asyncio.Event(), asyncio.Event())

    @app.get("/slow")
    async def slow() -> str:  # pyright: ignore[reportUnusedFunction] -- the app calls it
        gate.entered.set()
        await gate.opened.wait()
        return "done"

    with listen(QueryApiSettings(port=0)) as listener:
        serving = asyncio.create_task(serve(app, listener, on_stop=gate.stopping.set, **options))
        async with http_client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            yield serving, client, gate


class Gate(NamedTuple):
    entered: asyncio.Event
    opened: asyncio.Event
    stopping: asyncio.Event


async def is_refused(client: httpx.AsyncClient) -> bool:
    try:
        await client.get("/none")
    except httpx.TransportError:
        return True
    return False


async def test_a_stop_waits_for_the_request_under_way_and_for_no_idle_connection():
    async with slow_server() as (serving, client, gate):
        first = asyncio.create_task(client.get("/slow"))
        await gate.entered.wait()
        assert (await client.get("/none")).status_code == 404  # its connection stays, idle
        serving.cancel()
        await eventually(lambda: is_refused(client))
        assert not serving.done()
        gate.opened.set()
        assert (await first).json() == "done"
        _, pending = await asyncio.wait({serving}, timeout=2.5)  # an idle one would cost three
        assert not pending


async def test_a_request_that_does_not_end_is_cut_off():
    async with slow_server(finish_within=timedelta(seconds=0.05)) as (serving, client, gate):
        request = asyncio.create_task(client.get("/slow"))
        await gate.entered.wait()
        serving.cancel()
        assert (await request).status_code == 500
        with pytest.raises(asyncio.CancelledError):
            await serving


async def test_the_release_that_answers_is_named(api: QueryApi):
    answer = await api.get("/fleet/v1/version")
    assert answer.json() == {"version": version("fleetbus-sdk"), "commit": ""}


async def test_openapi_describes_every_answer(api: QueryApi):
    document = (await api.get("/openapi.json")).json()

    paths = {path for path in document["paths"] if path.startswith("/fleet/v1")}
    assert paths == {
        "/fleet/v1/clusters",
        "/fleet/v1/clusters/{name}",
        "/fleet/v1/resources",
        "/fleet/v1/version",
        "/fleet/v1/resources/{resource}",
        "/fleet/v1/counts/{resource}",
        "/fleet/v1/outliers/{resource}",
        "/fleet/v1/events",
        "/fleet/v1/where",
        "/fleet/v1/history",
        "/fleet/v1/changes",
        "/fleet/v1/deleted/{resource}",
        "/fleet/v1/timeline/{cluster}/{resource}/{namespace}/{name}",
        "/fleet/v1/queues",
        "/fleet/v1/held-deletions",
        "/fleet/v1/owners/{cluster}/{resource}/{namespace}/{name}",
        "/fleet/v1/children/{cluster}/{resource}/{namespace}/{name}",
        "/fleet/v1/objects/{cluster}/{resource}/{namespace}/{name}",
    }
    for path in paths:
        operation = document["paths"][path]["get"]
        answers = operation["responses"]
        content = answers["200"]["content"]
        if path == "/fleet/v1/events":
            assert content.keys() == {"text/event-stream"}
        else:
            assert "$ref" in content["application/json"]["schema"]
        assert {"400", "405", "503"} <= set(answers)
        assert "422" not in answers
    names = {
        p["name"] for p in document["paths"]["/fleet/v1/resources/{resource}"]["get"]["parameters"]
    }
    assert {"cluster", "labelSelector", "fieldSelector", "sort", "fields"} <= names
