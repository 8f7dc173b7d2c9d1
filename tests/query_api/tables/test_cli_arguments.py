"""Arguments that people try with `fleetbus get`, and the progress that they see meanwhile."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fleetbus.errors import ConfigError
from support.eventually import eventually
from support.hostile.chaos_proxy import chaos_link
from support.processes.in_process_commands import fleetbus
from support.rigs.query_api import Ended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.rigs.query_api import QueryApi

    Run = Callable[..., Awaitable[Ended]]

FLEETBUS = Path(sys.executable).parent / "fleetbus"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    for name in ("c1", "c2", "c3"):
        await api.add_cluster(name)
        await api.add(name, "core/pods", "web")
    return api


@pytest.fixture
def run(
    fleet: QueryApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setenv("FLEETBUS_API_URL", fleet.url)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def run_command(*argv: str) -> Ended:
        capsys.readouterr()
        status = await asyncio.to_thread(fleetbus, *argv)
        return Ended.read(status, capsys)

    return run_command


async def test_clusters_may_be_repeated_or_joined_by_commas(run: Run):
    joined = await run("get", "pods", "--cluster", "c1,c3", "--no-headers")
    repeated = await run("get", "pods", "--cluster", "c1", "--cluster", "c3", "--no-headers")

    assert [row[0] for row in joined.rows] == ["c1", "c3"]
    assert joined.out == repeated.out
    with pytest.raises(ConfigError, match="'c9' is not in the fleet"):
        await run("get", "pods", "--cluster", "c1,c9")


async def test_a_watch_of_a_category_is_refused_for_what_it_is(run: Run):
    with pytest.raises(ConfigError, match=r"one type.*'all' is several"):
        await run("get", "all", "-w")
    with pytest.raises(ConfigError, match="one type"):
        await run("get", "pods,deploy", "-w")


@pytest.mark.slow
async def test_after_a_second_a_terminal_shows_that_something_is_read_and_a_file_does_not(
    fleet: QueryApi, tmp_path: Path
):
    async with chaos_link(int(fleet.url.rpartition(":")[2]), speaks_nats=False) as link:
        link.hold()
        environment = {"FLEETBUS_API_URL": f"http://127.0.0.1:{link.port}", "HOME": str(tmp_path)}
        terminal, child_end = pty.openpty()
        command = [str(FLEETBUS), "get", "pods", "--no-headers"]
        pipe = asyncio.subprocess.PIPE
        watched = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=pipe, stderr=child_end
        )
        os.close(child_end)
        os.set_blocking(terminal, False)
        unwatched = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=pipe, stderr=subprocess.PIPE
        )
        output = bytearray()

        def is_shown() -> bool:
            with suppress(OSError):  # nothing there, or the end of the terminal
                output.extend(os.read(terminal, 4096))
            return b"reading pods" in output

        try:
            await eventually(is_shown)
            link.heal()
            rows, _ = await watched.communicate()
            others, errors = await unwatched.communicate()
            is_shown()
        finally:
            os.close(terminal)

    assert rows.split()[:3] == [b"c1", b"prod", b"web"]
    assert output.endswith(b"\r\x1b[K"), "the line is erased"
    assert (others, errors) == (rows, b"")
