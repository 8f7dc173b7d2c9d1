"""`fleetbus get` prints rows as they come: its memory does not grow with their number."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from support.processes.query_api import memory_of
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

FLEETBUS = Path(sys.executable).parent / "fleetbus"
OBJECTS = 6_000
LABELS = {"long": "x" * 4_000}
"""So the table has 24 MB, and as a whole in memory at least that."""
MOST = 52
"""MiB; the program itself takes 40, however many rows there are: 100,000 of pods, too."""


@pytest.mark.full
async def test_t19_a_long_table_is_printed_in_bounded_memory(api: QueryApi, tmp_path: Path):
    await api.add_cluster("c1", "core/configmaps")
    source = Source(cluster="c1", resource="configmaps")
    for at in range(0, OBJECTS, 250):
        names = [f"m{number}" for number in range(at, at + 250)]
        await api.snapshot.apply(
            *[
                source.added(name, 100 + at, body=msgspec.json.encode({"metadata": metadata}))
                for name in names
                for metadata in [{"name": name, "namespace": "prod", "labels": LABELS}]
            ]
        )

    child = await asyncio.create_subprocess_exec(
        *[str(FLEETBUS), "get", "cm", "--show-labels", "--no-headers"],
        env={"FLEETBUS_API_URL": api.url, "HOME": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    rows, peak = 0, 0.0
    while chunk := await child.stdout.read(2**20):
        rows += chunk.count(b"\n")
        with suppress(FileNotFoundError, AssertionError):  # it may have ended meanwhile
            peak = max(peak, memory_of(child.pid, "VmHWM"))

    assert (await child.wait(), rows) == (0, OBJECTS)
    assert 20 < peak < MOST
