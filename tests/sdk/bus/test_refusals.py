"""A subject that the server refuses ends only the waits for it (rule B13)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.refusals import Refused
from fleetbus.bus.stream_reads import direct_get
from fleetbus.process.access.nats import NatsAccess
from support.eventually import eventually
from support.servers.identities import secured_nats

RIGHTS = """
authorization { users: [
  { user: some, password: p, permissions: {
      publish: ["may.>", "_INBOX.>"], subscribe: ["may.>", "_INBOX.of.>"] } }
] }
"""


@pytest.fixture
async def address(tmp_path: Path) -> AsyncGenerator[str]:
    async with secured_nats(tmp_path / "nats", RIGHTS) as nats:
        yield nats.address.replace("nats://", "nats://some:p@")


def as_user(address: str, inboxes: str) -> NatsAccess:
    return NatsAccess(url=address, inbox_prefix=inboxes)


async def answer_later(bus: Bus, subject: str) -> asyncio.Task[bytes]:
    """Begin a request that somebody has received and does not answer yet."""
    received: list[str] = []

    async def answer(message: object) -> None:
        received.append(getattr(message, "reply", ""))

    await bus.nc.subscribe(subject, cb=answer)

    async def ask() -> bytes:
        return (await bus.request(subject)).data

    asking = asyncio.create_task(ask())
    await eventually(lambda: received)
    asking.set_name(received[0])
    return asking


async def test_b13_a_refusal_ends_what_waits_for_that_subject_only(address: str):
    async with connected(as_user(address, "_INBOX.of"), name="of") as bus:
        asking = await answer_later(bus, "may.Ask")
        get = direct_get(bus, "S", {}, "s", lambda _message, _headers: None)
        refused = [
            ("maynot.ask", asyncio.create_task(bus.request("mayNot.Ask"))),
            ("maynot.ask", asyncio.create_task(bus.request("mayNot.Ask"))),
            ("$js.api.direct.get.s", asyncio.create_task(get)),
        ]
        for subject, task in refused:  # the server reports them at the same time
            with pytest.raises(Refused, match=rf'refuses of: .* publish to "{re.escape(subject)}"'):
                await task
        await bus.publish(asking.get_name(), b"answer")
        assert await asking == b"answer"


async def test_b13_without_inboxes_requests_fail_and_subscriptions_do_not(address: str):
    async with connected(as_user(address, "_INBOX.other"), name="other") as bus:
        messages = await bus.nc.subscribe("may.get")
        async with bus.refusals.until_refused("may.get", is_answered=False):
            for _ in range(2):  # the second makes no new inbox, so the server says nothing
                with pytest.raises(Refused, match=r'subscription to "_inbox\.other'):
                    await bus.request("may.ask")
            await bus.publish("may.get", b"got")
            assert (await messages.next_msg(timeout=5)).data == b"got"


async def test_b13_rights_may_be_others_after_a_reconnect(tmp_path: Path):
    async with secured_nats(tmp_path / "nats", RIGHTS) as nats:
        address = nats.address.replace("nats://", "nats://some:p@")
        async with connected(as_user(address, "_INBOX.other"), name="other") as bus:
            with pytest.raises(Refused):
                await bus.request("may.ask")
            nats.configure(RIGHTS.replace("_INBOX.of", "_INBOX.other"))
            await nats.crash()
            await eventually(lambda: bus.disconnects)
            await bus.wait_connected()
            asking = await answer_later(bus, "may.ask")
            await bus.publish(asking.get_name(), b"answer")
            assert await asking == b"answer"
