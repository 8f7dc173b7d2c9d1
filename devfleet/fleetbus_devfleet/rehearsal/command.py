"""Runs `fleetbus rehearse`."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from fleetbus.errors import FleetbusError
from fleetbus.process import printer
from fleetbus.process.logs import set_up_logs
from fleetbus_cli.capture.capture import CaptureOptions, capture
from fleetbus_cli.capture.reading import Capture
from fleetbus_cli.target import resolve_target
from fleetbus_devfleet.processes.children import ChildError
from fleetbus_devfleet.processes.servers import ServerMissingError
from fleetbus_devfleet.rehearsal.manifest import read_manifest
from fleetbus_devfleet.rehearsal.report import print_rehearsal
from fleetbus_devfleet.rehearsal.run import Script, rehearse
from fleetbus_devfleet.stack.plan import PlanError
from fleetbus_emulator.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetbus_devfleet.rehearsal.faults import Fault
    from fleetbus_devfleet.rehearsal.outcome import Rehearsal

_INTERRUPTED: Final = 130
_EXPECTED: Final = (FleetbusError, ChildError, PlanError, ServerMissingError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The checked arguments."""

    manifest: Path
    namespace: str
    capture: Path | None
    faults: Sequence[Fault]
    votes: Mapping[str, str]
    speed: float
    timeout: timedelta
    output: str
    nats_url: str | None
    redis_url: str | None


def run_rehearsal(request: Request) -> int:
    """Rehearse and print; return the exit status: 0 if the result is good."""
    set_up_logs("text", "error")
    try:
        with scratch_folder("rehearsal") as folder:
            rehearsal = asyncio.run(_rehearse(request, folder))
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("interrupted; every process is stopped, and nothing is left")
        return _INTERRUPTED
    except _EXPECTED as error:
        _say(str(error))
        return 1
    if request.output == "json":
        printer.json_text(orjson.dumps(rehearsal.to_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        print_rehearsal(rehearsal)
    return 0 if rehearsal.is_good else 1


async def _rehearse(request: Request, folder: Path) -> Rehearsal:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    manifest = read_manifest(request.manifest, request.namespace, speed=request.speed)
    path = request.capture or await _captured(request, folder / "fleet.capture.gz")
    script = Script(
        capture=Capture.open(path.absolute()),
        manifest=manifest,
        faults=request.faults,
        votes=request.votes,
        timeout=request.timeout,
    )
    script.check()
    return await rehearse(script, folder, _show)


async def _captured(request: Request, path: Path) -> Path:
    """Capture the fleet as it is, with all values but those of Secrets: nobody else reads it."""
    store = resolve_target(nats_url=request.nats_url, redis_url=request.redis_url).require_store()
    options = CaptureOptions.read(
        out=path,
        since="0s",
        clusters=[],
        resources=[],
        redact=[],
        redact_values=False,
        keep_values=True,
        force=False,
    )
    _show("capturing the fleet")
    await capture(options, store=store, nats=None, report=_no_progress)
    return path


def _no_progress(objects: int, events: int) -> None:
    del objects, events


def _show(text: str, at: float | None = None) -> None:
    printer.note(f"{f'+{at:5.1f} s  ' if at is not None else ''}{text}")


def _say(text: str) -> None:
    printer.note(f"fleetbus rehearse: {text}")
