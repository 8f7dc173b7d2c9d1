"""Commands that NATS refuses a subject name it at once, and do not wait (rule B13)."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_stream
from fleetbus_cli.app import app
from fleetbus_cli.nats import PATIENCE
from support.processes.in_process_commands import one_line, status_of
from support.servers.identities import secured_nats

RIGHTS = """
authorization {
  default_permissions: { publish: ["nothing"], subscribe: ["nothing"] }
  users: [
    { user: answered, password: p, permissions: {
        publish: ["nothing"], subscribe: ["_INBOX.>"] } }
    { user: deaf, password: p, permissions: {
        publish: ["$JS.API.>"], subscribe: ["nothing"] } }
    { user: puller, password: p, permissions: {
        publish: { allow: ["$JS.API.>"], deny: ["$JS.API.CONSUMER.MSG.NEXT.>"] }
        subscribe: ["_INBOX.>"] } }
    { user: owner, password: p, permissions: { publish: [">"], subscribe: [">"] } }
  ]
}
"""
CREATE = 'publish to "$js.api.consumer.create.fleetbus_'
NEXT = 'publish to "$js.api.consumer.msg.next.fleetbus_events.'
INBOX = 'subscription to "_inbox.'


@pytest.fixture
async def address(tmp_path: Path) -> AsyncGenerator[str]:
    async with secured_nats(tmp_path / "nats", RIGHTS) as nats:
        address = nats.address.removeprefix("nats://")
        async with connected(f"nats://owner:p@{address}", name="owner") as bus:
            await ensure_stream(bus)
        yield address


@pytest.mark.parametrize(
    ("user", "command", "refused"),
    [
        ("answered", "events", f"{CREATE}events"),
        ("answered", "events --since 1m --follow", f"{CREATE}events"),
        ("answered", "events --follow", 'subscription to "fleetbus.events.>"'),
        (
            "answered",
            "events --follow --cluster eu1",
            'subscription to "fleetbus.events.eu1.>"',
        ),
        ("answered", "events --distribution", f"{CREATE}distribution"),
        ("answered", "events -d -f", 'subscription to "fleetbus.distribution.'),
        ("answered", "clusters audit eu1", 'publish to "$js.api.direct.get.kv_fleetbus_state.'),
        ("puller", "events", NEXT),
        ("puller", "events --since 1m --follow", NEXT),
        ("deaf", "events", INBOX),
        ("deaf", "events --since 1m --follow", INBOX),
        ("deaf", "clusters audit eu1", INBOX),
    ],
)
def test_b13_a_command_names_the_subject_that_it_may_not_use(
    address: str,
    user: str,
    command: str,
    refused: str,
    capsys: pytest.CaptureFixture[str],
):
    began = time.monotonic()
    words = [*command.split(), "--nats-url", f"nats://{user}:p@{address}"]
    assert status_of(app, words) == 1
    assert refused in one_line(capsys)
    assert time.monotonic() - began < PATIENCE.total_seconds()


def test_b13_the_doctor_says_what_to_do_about_a_right_that_is_missing(
    address: str, valkey_url: str, capsys: pytest.CaptureFixture[str]
):
    bus = ["--nats-url", f"nats://answered:p@{address}"]
    assert status_of(app, ["doctor", *bus, "--redis-url", valkey_url, "-o", "json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    [problem] = [one for one in findings if one["about"] == "nats" and one["severity"] == "error"]
    assert "stream.info.fleetbus_events" in problem["message"]
    assert problem["advice"].startswith("give its user this right")
