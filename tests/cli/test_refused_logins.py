"""Commands whose login NATS refuses say so, and what to check: they do not wait (rule B13)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fleetbus.snapshot.records import ResourceRecord, ResourceState, ScopeRecord
from fleetbus_cli.app import app
from support.processes.in_process_commands import status_of
from support.servers.identities import secured_nats
from support.stores.snapshot import Snapshot

LOGINS = "authorization { users: [ { user: ops, password: right } ] }\n"
CANARY = "CANARY-wrong"


@pytest.fixture
async def password(
    tmp_path: Path, redis: Redis, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Path]:
    """A file with another password than the server's, which the commands are set to."""
    path = tmp_path / "password"
    path.write_text(CANARY)
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    scope = ScopeRecord(state=ResourceState.SYNCED)
    pods = ResourceRecord(
        group="core", version="v1", plural="pods", is_declared=True, namespaced=True
    )
    pods.scopes[""] = scope
    await snapshot.writer.put_resource_state("eu1", pods)
    async with secured_nats(tmp_path / "nats", LOGINS) as nats:
        monkeypatch.setenv("FLEETBUS_NATS_URL", nats.address)
        monkeypatch.setenv("FLEETBUS_NATS_USERNAME", "ops")
        monkeypatch.setenv("FLEETBUS_NATS_PASSWORD_FILE", str(path))
        monkeypatch.setenv("FLEETBUS_REDIS_URL", valkey_url)
        yield path


def test_b13_a_refused_login_names_the_user_and_the_file(
    password: Path, capsys: pytest.CaptureFixture[str]
):
    check = f"check FLEETBUS_NATS_USERNAME (ops) and FLEETBUS_NATS_PASSWORD_FILE ({password})"
    assert status_of(app, ["events", "--since", "1m"]) == 1
    err = capsys.readouterr().err
    assert "refuses fleetbus-events" in err
    assert check in err

    status_of(app, ["explain", "eu1", "pods", "default/web", "-o", "json"])
    why = json.loads(capsys.readouterr().out)["bus"]
    assert "refuses fleetbus-explain" in why
    assert check in why

    assert status_of(app, ["doctor", "-o", "json"]) == 1
    report = capsys.readouterr().out
    [of_nats] = [
        finding for finding in json.loads(report)["findings"] if finding["about"] == "nats"
    ]
    assert check in of_nats["message"]
    assert CANARY not in err + why + report
