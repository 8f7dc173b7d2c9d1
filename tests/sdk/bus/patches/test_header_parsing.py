"""Headers are read as nats-py reads them, and sooner."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given
from nats.aio.client import Client

from fleetbus.bus.connection import connected
from fleetbus.bus.patches.header_parsing import read_header_lines
from support.rows import each_row

AS_NATS_PY = vars(Client)["_parse_header_lines"].__func__

NAMES = st.sampled_from(
    ["a", "ce-id", " padded ", "of two", "", "sch\N{LATIN SMALL LETTER O}", "\xf6"]
)
VALUES = st.text(max_size=8).filter(lambda text: "\r\n" not in text)
LINES = st.lists(st.tuples(NAMES, st.sampled_from([":", ": ", ":\t", ""]), VALUES))


@given(LINES)
@example([("a", ":", "\xa0nbsp\x85")])
@example([("a", ": ", "x:y")])
def test_b10_headers_are_read_as_nats_py_reads_them(lines: list[tuple[str, str, str]]):
    raw = "".join(f"{name}{colon}{value}\r\n" for name, colon, value in lines).encode() + b"\r\n"
    assert read_header_lines(raw) == AS_NATS_PY(raw)


@each_row("raw", [b"a: \xff\xfe\r\n\r\n", b"a: \xe2\x82\r\nb: 1\r\n\r\n", b"\xff: 1\r\n"])
def test_b10_what_is_no_text_is_read_as_nats_py_reads_it(raw: bytes):
    assert read_header_lines(raw) == AS_NATS_PY(raw)


async def test_b10_a_connection_reads_headers_that_way(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
):
    calls: list[bytes] = []

    def reading(raw: bytes) -> dict[str, str]:
        calls.append(raw)
        return read_header_lines(raw)

    monkeypatch.setattr("fleetbus.bus.patches.header_parsing.read_header_lines", reading)
    async with connected(nats_url, name="test") as bus:
        subscription = await bus.nc.subscribe("x")
        await bus.nc.publish("x", headers={"a": "b", "c": "d e"})
        message = await subscription.next_msg()
    assert message.headers == {"a": "b", "c": "d e"}
    assert len(calls) == 1
