"""A flush comes after what was sent before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from nats.aio.msg import Msg

from fleetbus.bus.connection import connected


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
