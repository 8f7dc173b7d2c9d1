"""The state of a stack for other processes: `stack.json`, and health checks of its parts.

The file alone proves nothing, because a killed owner cannot remove it; the lock beside it ends
with its owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

import aiohttp
import orjson

if TYPE_CHECKING:
    from collections.abc import Generator

    from fleetbus_devfleet.stack.plan import Layout

_PROBE_PATIENCE = timedelta(seconds=2)
_LOCK_PATIENCE = timedelta(milliseconds=300)
_LOCK_POLL = 0.02
_HTTP_OK = 200

Phase = Literal["starting", "running", "stopping", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartState:
    """One process of a stack.

    Attributes:
        name: what people call it.
        pid: its process.
        log: its log file.
        ready_url: answers 200 when it is ready; `tcp://host:port` for what does not speak HTTP;
            empty while unknown.
    """

    name: str
    pid: int
    log: str
    ready_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """A stack at one moment.

    Attributes:
        phase: what its owner does with it.
        pid: its owner.
        clusters: the names of its clusters, the hub first.
        behind_agents: those that the hub calls through agents.
        kubeconfig: the file with one context per cluster.
        nats_url: where NATS is.
        redis_url: where Valkey is.
        api_url: where the query API is.
        admin_url: where the emulated clusters can be broken and questioned.
        parts: its processes, in the order of their start.
        ready: the names of the parts that have been ready.
        error: why it failed.
        record: whether the ground truth of each cluster is written to a file.
        secrets: whether Secrets are watched.
        progress_seconds: how often the clusters' stores report progress; None for all the time.
    """

    phase: Phase
    pid: int
    clusters: tuple[str, ...] = ()
    behind_agents: tuple[str, ...] = ()
    kubeconfig: str = ""
    nats_url: str = ""
    redis_url: str = ""
    api_url: str = ""
    admin_url: str = ""
    parts: tuple[PartState, ...] = ()
    ready: tuple[str, ...] = ()
    error: str = ""
    record: bool = False
    secrets: bool = False
    progress_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """One part as it was found; `problem` is empty when it is ready."""

    name: str
    pid: int
    state: Literal["ready", "not ready", "ended"]
    problem: str = field(default="")


def write_state(path: Path, state: StackState) -> None:
    """Write the state, whole or not at all."""
    temporary = path.with_suffix(".part")
    temporary.write_bytes(orjson.dumps(asdict(state), option=orjson.OPT_INDENT_2))
    temporary.replace(path)


def read_state(path: Path) -> StackState | None:
    """Read the state; None if there is none, or none of ours."""
    try:
        fields = cast("dict[str, Any]", orjson.loads(path.read_bytes()))
        fields["parts"] = tuple(PartState(**entry) for entry in fields["parts"])
        fields |= {name: tuple(fields[name]) for name in ("clusters", "behind_agents", "ready")}
        return StackState(**fields)
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


@contextlib.contextmanager
def owned(layout: Layout) -> Generator[bool]:
    """Try to own the stack in a folder until the block ends; False if someone else does."""
    layout.root.mkdir(parents=True, exist_ok=True)
    with layout.lock.open("w") as lock:
        yield _locked(lock, fcntl.LOCK_EX, within=_LOCK_PATIENCE)


def is_owned(layout: Layout) -> bool:
    """Whether a living process owns the stack in a folder."""
    try:
        with layout.lock.open("r") as lock:
            return not _locked(lock, fcntl.LOCK_SH, within=timedelta(0))
    except FileNotFoundError:
        return False


def _locked(lock: TextIO, mode: int, *, within: timedelta) -> bool:
    # Who only asks holds the lock for an instant, so an owner-to-be tries again.
    deadline = time.monotonic() + within.total_seconds()
    while True:
        try:
            fcntl.flock(lock, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_POLL)
        else:
            return True


def is_alive(pid: int) -> bool:
    """Whether a process of this id runs; one that ended and was not reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):  # no /proc here: the signal's answer must do
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


async def probe(parts: tuple[PartState, ...]) -> list[PartStatus]:
    """Ask every part, side by side, whether it is ready."""
    timeout = aiohttp.ClientTimeout(total=_PROBE_PATIENCE.total_seconds())
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return list(await asyncio.gather(*(_probe_part(session, part) for part in parts)))


async def _probe_part(session: aiohttp.ClientSession, part: PartState) -> PartStatus:
    if not is_alive(part.pid):
        problem = f"its process has ended; see {part.log}"
        return PartStatus(name=part.name, pid=part.pid, state="ended", problem=problem)
    problem = await problem_of(session, part.ready_url)
    state = "not ready" if problem else "ready"
    return PartStatus(name=part.name, pid=part.pid, state=state, problem=problem)


async def problem_of(session: aiohttp.ClientSession, ready_url: str) -> str:
    """The reason why a part is not ready; empty if it is."""
    if not ready_url:
        return "it has not written its port yet"
    try:
        if ready_url.startswith("tcp://"):
            return await _tcp_problem(ready_url)
        async with session.get(ready_url) as answer:
            return "" if answer.status == _HTTP_OK else (await answer.text()).strip()
    except TimeoutError:
        return f"no answer within {_PROBE_PATIENCE.total_seconds():.0f} s"
    except (aiohttp.ClientError, OSError) as error:
        return str(error) or type(error).__name__


async def _tcp_problem(ready_url: str) -> str:
    host, _, port = ready_url.removeprefix("tcp://").partition(":")
    async with asyncio.timeout(_PROBE_PATIENCE.total_seconds()):
        _, writer = await asyncio.open_connection(host, int(port))
    writer.close()
    await writer.wait_closed()
    return ""
