"""A flush comes after what was sent before it, and an answer to it that comes late does no harm."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from nats.aio.msg import Msg

from fleetbus.bus.connection import connected
from support.eventually import eventually
from support.hostile.chaos_proxy import chaos_link


async def test_a_ping_is_written_after_what_waits(nats_url: str, monkeypatch: pytest.MonkeyPatch):
    written = bytearray()

    async def ignore(_message: Msg) -> None: ...

    async with connected(nats_url, name="test") as bus:
        transport: Any = bus.nc._transport  # pyright: ignore[reportPrivateUsage] -- the order of bytes
        write, writelines = transport.write, transport.writelines

        def note(data: bytes) -> None:
            written.extend(data)
            write(data)

        def note_all(lines: Iterable[bytes]) -> None:
            written.extend(b"".join(lines))
            writelines(lines)

        monkeypatch.setattr(transport, "write", note)
        monkeypatch.setattr(transport, "writelines", note_all)
        await bus.nc.subscribe("a", cb=ignore)
        await bus.nc.publish("b", b"text")
        await bus.nc.flush()
        assert written.startswith(b"SUB a")
        assert written.index(b"PUB b") < written.index(b"PING")


async def test_an_answer_that_comes_late_does_not_end_the_connection(nats_url: str):
    received: list[bytes] = []

    async def take(message: Msg) -> None:
        received.append(message.data)

    async with (
        chaos_link(urlsplit(nats_url).port or 0) as link,
        connected(link.url, name="test") as bus,
    ):
        await bus.nc.subscribe("a", cb=take)
        assert await bus.ping(timedelta(seconds=5))
        link.hold(up=False)
        assert not await bus.ping(timedelta(seconds=0.1))
        link.heal()
        assert await bus.ping(timedelta(seconds=5))
        await bus.publish("a", b"text")
        await eventually(lambda: received == [b"text"])
        assert not bus.disconnects
