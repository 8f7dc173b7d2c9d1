"""The link between a client and NATS can be held, cut, refused, and made to lose publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from support.hostile.chaos_proxy import Frames, Link, chaos_link, subject_of


@asynccontextmanager
async def echoing() -> AsyncGenerator[Link]:
    """A link to a server that sends back whatever comes."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, chaos_link(server.sockets[0].getsockname()[1]) as link:
        yield link


def test_commands_are_cut_behind_their_payloads_however_they_arrive():
    sent = b"PING\r\nHPUB fleetbus.events.a _INBOX.1 4 9\r\nh\r\n\r\n1234\r\nPUB x 2\r\nab\r\n"
    commands = [b"PING\r\n", sent[6:-13], b"PUB x 2\r\nab\r\n"]
    assert Frames().feed(sent) == commands
    frames = Frames()
    assert [
        frame for at in range(len(sent)) for frame in frames.feed(sent[at : at + 1])
    ] == commands
    assert [subject_of(frame) for frame in commands] == ["", "fleetbus.events.a", "x"]


async def test_what_is_held_arrives_after_the_healing_and_what_is_lost_never():
    async with echoing() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        link.hold()
        writer.write(b"PING\r\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.readline()
        link.heal()
        assert await reader.readline() == b"PING\r\n"
        link.loses = lambda subject: subject == "x"
        writer.write(b"PUB x 2\r\nab\r\nPUB y 2\r\ncd\r\n")
        assert await reader.readline() == b"PUB y 2\r\n"
        assert link.lost == 1
        writer.close()


async def test_a_link_that_is_cut_or_refuses_ends_connections():
    async with echoing() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"PING\r\n")
        assert await reader.readline() == b"PING\r\n"
        link.refuse()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        again, refused = await asyncio.open_connection("127.0.0.1", link.port)
        assert await again.read() == b""
        writer.close()
        refused.close()
