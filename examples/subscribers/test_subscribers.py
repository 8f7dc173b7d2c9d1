"""The Python subscriber runs; the other two are parsed where their toolchain is present."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_proto import codec, headers, subjects
from fleetbus_proto.subjects import Verb
from support.servers.identities import secured_nats
from support.wire.samples import MESSAGE_KEY, event

FOLDER = Path(__file__).parent


async def _tell(client: Client, **fields: Any) -> None:
    message = event(**fields)
    m = message
    subject = subjects.event_subject(m.cluster, m.group, m.resource, m.namespace, m.name, m.verb)
    jetstream = client.jetstream()
    await jetstream.publish(
        subject, codec.encode(message), headers=headers.build(message, MESSAGE_KEY)
    )


async def start_subscriber(*arguments: str, env: dict[str, str]) -> asyncio.subprocess.Process:
    """Start the Python subscriber, with these variables beside those of the test."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        FOLDER / "subscriber.py",
        *arguments,
        env=os.environ | env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_python_subscriber_prints_each_change_once_in_order(nats: Client, nats_url: str):
    await nats.jetstream().add_stream(name=subjects.STREAM, subjects=[subjects.EVENTS_ALL])
    await _tell(nats, verb=Verb.ADDED, resource_version="99")
    await _tell(nats, verb=Verb.MODIFIED, resource_version="100")
    await _tell(nats, verb=Verb.MODIFIED, resource_version="98")  # late: 98 < 100 as numbers
    await _tell(nats, verb=Verb.LISTED, resource_version="100")  # known
    await nats.jetstream().publish("fleetbus.events.eu1.a.b.c.d.added", b"?")  # of no format
    await _tell(nats, cluster="us1", verb=Verb.DELETED, resource_version="1")  # filtered out
    forged = event(cluster="us1", verb=Verb.DELETED)
    forged_subject = "fleetbus.events.eu1.apps.deployments.prod.web.deleted"
    forged_headers = headers.build(forged, MESSAGE_KEY)
    # by eu1, about us1
    await nats.jetstream().publish(forged_subject, codec.encode(forged), headers=forged_headers)
    await _tell(nats, verb=Verb.DELETED, resource_version="101")
    process = await start_subscriber("fleetbus.events.eu1.>", env={"NATS_URL": nats_url})
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            lines = [(await process.stdout.readline()).decode().strip() for _ in range(3)]
    finally:
        process.kill()
        _, errors = await process.communicate()
    assert lines == [
        "added eu1 apps deployments prod web 99",
        "modified eu1 apps deployments prod web 100",
        "deleted eu1 apps deployments prod web 101",
    ]
    assert (
        errors.decode() == f"skipped fleetbus.events.eu1.a.b.c.d.added\nskipped {forged_subject}\n"
    )


@pytest.mark.parametrize("is_there_first", [False, True])
async def test_the_python_subscriber_says_in_one_line_that_nats_is_away_and_ends_at_ctrl_c(
    tmp_path: Path, *, is_there_first: bool
):
    async with contextlib.AsyncExitStack() as server:
        url = "nats://127.0.0.1:1"
        if is_there_first:
            first_server = await server.enter_async_context(nats_server(store_dir=tmp_path))
            url = first_server.url
            client = Client()
            await client.connect(url)
            await client.jetstream().add_stream(
                name=subjects.STREAM, subjects=[subjects.EVENTS_ALL]
            )
            await _tell(client, verb=Verb.ADDED)
            await client.close()
        process = await start_subscriber(env={"NATS_URL": url})
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(20):
                if is_there_first:
                    await process.stdout.readline()
                    await server.aclose()
                lines = [(await process.stderr.readline()).decode()]
                process.send_signal(signal.SIGINT)
                remainder = (await process.communicate())[1].decode()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    lines += remainder.splitlines()
    assert [line[:17] for line in lines] == ["waiting for NATS:"]
    assert process.returncode == 0


@pytest.mark.parametrize(
    "command", [["node", "--check", "subscriber.mjs"], ["gofmt", "-e", "-l", "subscriber.go"]]
)
def test_the_others_are_well_formed(command: list[str]):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    result = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


RIGHTS = """
authorization { users: [
  { user: admin, password: p }
  { user: tool, password: "WORD", permissions: {
      publish: ["$JS.API.CONSUMER.MSG.NEXT.FLEETBUS_EVENTS.tool", "$JS.ACK.FLEETBUS_EVENTS.tool.>"],
      subscribe: ["_INBOX.subscriber.tool.>"] } }
] }
"""


@pytest.mark.slow
async def test_the_python_subscriber_goes_on_with_a_rotated_password_and_only_its_rights(
    tmp_path: Path,
):
    password = tmp_path / "password"
    password.write_text("one\n")
    async with secured_nats(tmp_path / "nats", RIGHTS.replace("WORD", "one")) as server:
        admin = Client()
        await admin.connect(server.address.replace("nats://", "nats://admin:p@"))
        stream = admin.jetstream()
        await stream.add_stream(name=subjects.STREAM, subjects=[subjects.EVENTS_ALL])
        await stream.add_consumer(subjects.STREAM, durable_name="tool", ack_policy="explicit")
        await _tell(admin, verb=Verb.ADDED, resource_version="99")
        process = await start_subscriber(
            env={
                "FLEETBUS_NATS_URL": server.address,
                "FLEETBUS_NATS_USERNAME": "tool",
                "FLEETBUS_NATS_PASSWORD_FILE": str(password),
                "SUBSCRIBER_DURABLE": "tool",
            }
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(20):
                first = (await process.stdout.readline()).decode()
                server.configure(RIGHTS.replace("WORD", "two"))
                server.reload()
                error_line = (await process.stderr.readline()).decode()
                await _tell(admin, verb=Verb.MODIFIED, resource_version="100")
                password.write_text("two\n")
                second = (await process.stdout.readline()).decode()
        finally:
            process.kill()
            await process.communicate()
            await admin.close()
    assert first == "added eu1 apps deployments prod web 99\n"
    assert error_line.startswith("waiting for NATS:")
    assert second == "modified eu1 apps deployments prod web 100\n"
