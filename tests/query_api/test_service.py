"""The process: where it listens, how it tells of itself, how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from eventually import eventually

from fleetbus.errors import ConfigError
from fleetbus.settings import SharedSettings
from fleetbus_query_api.main import run
from fleetbus_query_api.settings import QueryApiSettings

if TYPE_CHECKING:
    from query_api_rig import QueryApi

_START = timedelta(seconds=30)
COMMAND = Path(sys.executable).parent / "fleetbus-query-api"


def run_command(**settings: str) -> subprocess.CompletedProcess[str]:
    names = {f"FLEETBUS_{name.upper()}": value for name, value in settings.items()}
    return subprocess.run(
        [COMMAND], env={**os.environ, **names}, capture_output=True, text=True, check=False
    )


async def test_it_refuses_to_listen_beyond_loopback_with_status_2():
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):  # noqa: S104 -- refused
        with pytest.raises(ConfigError, match="loopback"):
            await run(SharedSettings(), QueryApiSettings(host=host))
    ended = await asyncio.to_thread(run_command, query_api_host="0.0.0.0")  # noqa: S104 -- refused
    assert ended.returncode == 2
    assert "FLEETBUS_QUERY_API_HOST" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_port_in_use_is_one_message(api: QueryApi):
    port = int(api.url.rpartition(":")[2])

    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
        await run(SharedSettings(), QueryApiSettings(port=port))


async def test_the_command_serves_tells_its_health_and_ends_on_sigterm(
    valkey_url: str, tmp_path: Path
):
    ports = {"FLEETBUS_QUERY_API_PORT_FILE": "api", "FLEETBUS_HEALTH_PORT_FILE": "health"}
    env = {name: str(tmp_path / file) for name, file in ports.items()}
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        env={**os.environ, "FLEETBUS_REDIS_URL": valkey_url, **env},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        api, health = tmp_path / "api", tmp_path / "health"
        await eventually(lambda: api.exists() and health.exists(), within=_START)
        async with httpx.AsyncClient() as client:
            base = f"http://127.0.0.1:{api.read_text().strip()}"
            probe = f"http://127.0.0.1:{health.read_text().strip()}"
            assert (await client.get(f"{base}/fleet/v1/clusters")).status_code == 503
            assert (await client.get(f"{probe}/healthz")).status_code == 200

            async def is_told_empty() -> bool:
                ready = await client.get(f"{probe}/readyz")
                return ready.status_code == 503 and "the store is empty" in ready.text

            await eventually(is_told_empty)
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    assert process.returncode == 0
    assert b"Traceback" not in errors


async def test_openapi_describes_every_answer(api: QueryApi):
    document = (await api.get("/openapi.json")).json()

    paths = {path for path in document["paths"] if path.startswith("/fleet/v1")}
    assert paths == {
        "/fleet/v1/clusters",
        "/fleet/v1/clusters/{name}",
        "/fleet/v1/resources/{resource}",
        "/fleet/v1/objects/{cluster}/{resource}/{namespace}/{name}",
    }
    for path in paths:
        operation = document["paths"][path]["get"]
        answers = operation["responses"]
        assert "$ref" in answers["200"]["content"]["application/json"]["schema"]
        assert {"400", "405", "503"} <= set(answers)
        assert "422" not in answers
    names = {
        p["name"] for p in document["paths"]["/fleet/v1/resources/{resource}"]["get"]["parameters"]
    }
    assert {"cluster", "labelSelector", "fieldSelector", "limit", "continue"} <= names
