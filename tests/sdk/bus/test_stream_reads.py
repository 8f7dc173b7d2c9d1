"""Messages of a stream by direct gets: pages, the last ones, the last of many subjects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus.bus.connection import Bus, NoStream, connected
from fleetbus.bus.stream_reads import last_messages, read_last, read_messages
from support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nats.aio.client import Client

BEGIN = datetime.now(UTC) - timedelta(hours=1)


@pytest.fixture
async def bus(nats: Client, nats_url: str) -> AsyncGenerator[Bus]:
    await nats.jetstream().add_stream(name="S", subjects=["s.>"], allow_direct=True)
    async with connected(nats_url, name="test") as client:
        yield client


async def fill(bus: Bus, *subjects: str, size: int = 3) -> None:
    """Store messages; the answer to the last one stands for all, which go the same way."""
    bodies = [str(number).encode().ljust(size) for number in range(len(subjects))]
    for subject, body in zip(subjects[:-1], bodies, strict=False):
        await bus.publish(subject, body)
    await bus.request(subjects[-1], bodies[-1])


async def last(bus: Bus, subject: str, most: int, *, end: int = 100_000) -> tuple[list[int], bool]:
    messages, has_more = await read_last(bus, "S", subject, start=BEGIN, end=end, most=most)
    return [int(message.body) for message in messages], has_more


async def test_all_messages_come_in_pages(bus: Bus):
    await fill(bus, *(["s.a", "s.b"] * 1100))
    pages = [page async for page in read_messages(bus, "S", "s.a", start=BEGIN)]
    assert [len(page) for page in pages] == [1000, 100]
    assert [int(message.body) for message in pages[1]] == list(range(2000, 2200, 2))
    few = [page async for page in read_messages(bus, "S", "s.>", start=2198, most=2)]
    assert [message.sequence for page in few for message in page] == [2198, 2199]
    none = [page async for page in read_messages(bus, "S", "s.c", start=1)]
    assert none == []


async def test_a_page_ends_early_where_messages_are_large(bus: Bus):
    await fill(bus, *(["s.a"] * 12), size=900_000)
    pages = [len(page) async for page in read_messages(bus, "S", "s.a", start=1)]
    assert sum(pages) == 12
    assert len(pages) > 1


async def test_what_arrives_during_the_reading_does_not_make_it_endless(bus: Bus):
    await fill(bus, *(["s.a"] * 6), size=900_000)
    read = 0
    async for page in read_messages(bus, "S", "s.a", start=1):
        read += len(page)
        assert read <= 6
        await fill(bus, *(["s.a"] * 6), size=900_000)
    assert read == 6


async def test_the_last_messages_of_a_busy_subject_are_found_by_halving(bus: Bus):
    await fill(bus, *(["s.busy"] * 3000), "s.rare", *(["s.busy"] * 500), "s.rare")
    assert await last(bus, "s.busy", 5, end=3502) == ([3496, 3497, 3498, 3499, 3500], True)
    assert await last(bus, "s.rare", 5) == ([3000, 3501], False)
    assert await last(bus, "s.rare", 2) == ([3000, 3501], False)
    assert await last(bus, "s.rare", 1) == ([3501], True)
    assert await last(bus, "s.none", 5) == ([], False)
    early = await last(bus, "s.busy", 3, end=10)
    assert early[0] == [3498, 3499, 3500], "an end that is too early costs time only"


async def test_the_last_message_of_each_subject_also_before_a_time(bus: Bus):
    await fill(bus, "s.a", "s.b", "s.a")
    between = datetime.now(UTC)
    await fill(bus, "s.a", "s.c")
    subjects = ["s.a", "s.b", "s.c", "s.d"]
    now = await last_messages(bus, "S", subjects)
    assert sorted((message.subject, message.sequence) for message in now) == [
        ("s.a", 4),
        ("s.b", 2),
        ("s.c", 5),
    ]
    then = await last_messages(bus, "S", subjects, until=between)
    assert sorted((message.subject, message.sequence) for message in then) == [
        ("s.a", 3),
        ("s.b", 2),
    ]


async def test_more_subjects_than_a_server_answers_at_once(bus: Bus):
    names = [f"s.{number}.x" for number in range(1200)]
    await fill(bus, *names)
    assert len(await last_messages(bus, "S", names)) == 1200


async def test_without_a_stream_there_is_an_error(bus: Bus):
    with pytest.raises(NoStream):
        await last_messages(bus, "NONE", ["s.a"])
    with pytest.raises(NoStream):
        _ = [page async for page in read_messages(bus, "NONE", "s.a", start=1)]


async def test_the_last_messages_come_in_parts_where_they_are_large(
    bus: Bus,
):
    """A server cuts an answer at 64 MiB, and says how many messages it has left out."""
    part = 2 * 1024**2
    subjects = [f"s.{number}" for number in range(12)]
    await fill(bus, *subjects, size=900_000)
    until = datetime.now(UTC) + timedelta(milliseconds=2)
    await eventually(lambda: datetime.now(UTC) > until)
    await fill(bus, *subjects[:6], size=10)
    old = await last_messages(bus, "S", subjects, until=until, part=part)
    assert sorted(message.sequence for message in old) == list(range(1, 13))
    new = await last_messages(bus, "S", ["s.*"], part=part)
    assert sorted(message.sequence for message in new) == list(range(7, 19))
