"""`fleetbus demo` as people and pipelines run it: a process that plays, and leaves nothing."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sysconfig
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fleetbus.errors import FleetbusError
from fleetbus_devfleet.console import Console
from fleetbus_devfleet.demo import show
from fleetbus_devfleet.demo.narrator import ClaimError, Narrator
from support.processes.running import processes_of

if TYPE_CHECKING:
    from collections.abc import Generator

_FLEETBUS = Path(sysconfig.get_path("scripts"), "fleetbus")


@pytest.fixture
def demo(tmp_path: Path) -> Generator[subprocess.Popen[str]]:
    """A running demo in a folder of its own, which all its processes name."""
    process = subprocess.Popen(
        [_FLEETBUS, "demo", "--instant", "--orders", "20"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        yield process
        if process.poll() is None:
            process.terminate()
    assert processes_of(tmp_path) == {}
    assert list(tmp_path.glob("fleetbus-*")) == []


def _read_until(demo: subprocess.Popen[str], text: str) -> str:
    assert demo.stdout is not None
    output = ""
    while text not in output:
        line = demo.stdout.readline()
        assert line, f"it ended before {text!r}:\n{output}"
        output += line
    return output


@pytest.mark.full  # CI runs `make demo`
def test_the_demo_plays_to_the_end_and_every_claim_holds(demo: subprocess.Popen[str]):
    output, _ = demo.communicate(timeout=58)

    assert demo.returncode == 0, output
    assert re.search(r"✓ All \d+ claims held, in \d+", output)
    for claim in (
        "every cluster is connected and completely known",
        "every member cluster runs its own variant, ready",
        "is put back to",
        "the census on the hub is what the API servers have",
        "whose API server refuses requests without",
        "was written through the agent",
        "its status says that us1 is Unreachable",
        "us1 has caught up",
        "its answer equals what the API servers have",
        "the deletion and the replacement are on their subjects",
        "all 20 are in the query API and in the census",
        "watcher-us1 got SIGKILL",
        "all 8 deletions and 3 creations were published",
        "the MultiClusterResource is gone",
        "10 processes have ended, none is left",
    ):
        assert claim in output, claim
    assert "\x1b" not in output  # plain text in a pipe


@pytest.mark.full  # `make test` interrupts `dev up`, which is the same
def test_an_interrupted_demo_stops_everything(demo: subprocess.Popen[str]):
    _read_until(demo, "ready: apiserver")
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=20)
    assert demo.returncode == 130, output
    assert "Interrupted; every process is stopped." in output


@pytest.mark.slow
def test_a_failed_demo_says_what_failed_and_keeps_the_logs(
    demo: subprocess.Popen[str], tmp_path: Path
):
    _read_until(demo, "ready: apiserver")
    apiserver = next(
        pid for pid, command in processes_of(tmp_path).items() if "fleetbus_emulator" in command
    )
    os.kill(apiserver, signal.SIGKILL)
    output, _ = demo.communicate(timeout=30)
    assert demo.returncode == 1, output
    assert "✗ The demo failed:" in output
    assert "The logs of every process are in .fleetbus/demo-logs." in output
    names = {path.name for path in (tmp_path / ".fleetbus" / "demo-logs").iterdir()}
    assert {"demo.log", "apiserver.log", "nats.log"} <= names


def _narrator() -> tuple[Narrator, io.StringIO]:
    output = io.StringIO()
    return Narrator(Console(file=output, width=100)), output


def test_a_demo_that_cannot_begin_names_no_logs_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / ".fleetbus/demo-logs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert show.run(clusters=3, orders=1, instant=True) == 1
    output = capsys.readouterr().out
    assert "The demo failed" in output
    assert "logs" not in output


async def test_a_claim_that_does_not_hold_in_time_is_an_error_that_names_what_was_found():
    narrator, _ = _narrator()

    async def check() -> str:
        return "two are missing"

    with pytest.raises(ClaimError, match=r"all are there.*nothing has changed.*; found: two are"):
        await narrator.prove("all are there", check, within=timedelta(milliseconds=20))
    assert narrator.proved == 0


async def test_a_refused_question_is_asked_again_and_the_claim_is_reported_once():
    narrator, output = _narrator()
    answers = iter([FleetbusError("not now"), ""])

    async def check() -> str:
        await asyncio.sleep(0)
        answer = next(answers)
        if isinstance(answer, FleetbusError):
            raise answer
        return answer

    await narrator.prove("[x] holds", check, within=timedelta(seconds=5))
    assert (narrator.proved, output.getvalue().count("✓ [x] holds (after")) == (1, 1)


def test_a_table_on_a_narrow_console_goes_on_in_the_next_line_and_is_not_cut():
    output = io.StringIO()
    row = ("eu1", "shop", "web-4rv678x646-tqgd6", "Running", "eu1-node-1", "ghcr.io/shop/web:1.28")
    titles = ("CLUSTER", "NAMESPACE", "NAME", "STATUS", "NODE", "IMAGE")
    Narrator(Console(file=output, width=80)).table(titles, [row])
    lines = output.getvalue().splitlines()
    assert all(title in lines[0].split() for title in titles), output.getvalue()
    assert "…" not in output.getvalue()
    assert max(map(len, lines)) <= 80
