"""`fleetbus run` as its user sees it: reload, mistakes and stopping, in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from fleetbus.controller.load import load_controllers, local_files
from fleetbus.errors import ConfigError
from fleetbus_cli.run.reload import FileWatch, ParentPipe, Reloader
from fleetbus_cli.run.run import load_and_report
from fleetbus_cli.target import resolve_target
from support.eventually import eventually
from support.rigs.fleet import Rig
from support.rows import each_row

OpenRig = Callable[..., Awaitable[Rig]]
FLEETBUS = str(pathlib.Path(sys.executable).with_name("fleetbus"))
WITHIN = timedelta(seconds=150)  # beside a full machine a process takes a minute to load
MAPS = "v1/configmaps"
OBJECTS = [f"o{number}" for number in range(6)]

CONTROLLER = """
import asyncio, json, os, time
import fleetbus
from words_of_the_test import VERSION

noter = fleetbus.Controller("noter", concurrency=3)
noter.watch("v1/configmaps", namespaces=["default"])

def note(request, **more):
    line = {"pid": os.getpid(), "name": request.name, "at": time.time(), "version": VERSION}
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps(line | more) + "\\n")

@noter.reconcile
async def take_notes(request, fleet):
    found = await fleet.cluster(request.cluster).get("v1/configmaps", "default", request.name)
    note(request, what="start", turn=(found or {}).get("data", {}).get("turn", ""))
    await asyncio.sleep(0.1)
    note(request, what="end")
"""


@dataclass
class Desk:
    """A folder with a controller, and processes that run it."""

    rig: Rig
    folder: pathlib.Path
    said: list[str] = field(default_factory=list[str])

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def notes(self, **fields: Any) -> list[dict[str, Any]]:
        path = self.folder / "notes.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        all_notes: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [note for note in all_notes if fields.items() <= note.items()]

    def pids(self, **fields: Any) -> set[int]:
        return {note["pid"] for note in self.notes(**fields)}

    def last_turns(self) -> dict[str, str]:
        return {note["name"]: note["turn"] for note in self.notes(what="start")}

    @asynccontextmanager
    async def run(self, *options: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            FLEETBUS,
            "run",
            *options,
            str(self.folder / "controller.py"),
            f"--kubeconfig={self.rig.kubeconfig}",
            f"--nats-url={self.rig.shared.nats_url}",
            f"--redis-url={self.rig.shared.redis_url}",
            env=os.environ | {"NOTES": str(self.folder / "notes.jsonl")},
            stderr=asyncio.subprocess.PIPE,
        )
        listening = asyncio.create_task(self._listen(process))
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()  # its child notices that the parent is gone
            await asyncio.gather(process.wait(), listening)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.said.append(line.decode())
            sys.stdout.write(line.decode())  # for whoever reads why the test failed

    def has_said(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.said)

    async def write_objects(self) -> dict[str, str]:
        """Change objects until cancelled; the last turn of each."""
        cluster, turns = self.rig.clusters["a"], dict.fromkeys(OBJECTS, "0")
        try:
            for turn in count(1):
                name = OBJECTS[turn % len(OBJECTS)]
                cluster.patch(MAPS, "default", name, {"data": {"turn": str(turn)}})
                turns[name] = str(turn)
                await asyncio.sleep(0.04)  # the pace of the load
        except asyncio.CancelledError:
            pass
        return turns


def overlaps(notes: list[dict[str, Any]]) -> list[str]:
    """Names of which two runs went on at the same time."""
    running: set[str] = set()
    overlapping: list[str] = []
    for note in sorted(notes, key=lambda each: each["at"]):
        if note["what"] == "start" and note["name"] in running:
            overlapping.append(note["name"])
        (running.add if note["what"] == "start" else running.discard)(note["name"])
    return overlapping


@pytest.mark.timeout(600)  # three processes are loaded, one after the other
@pytest.mark.full
async def test_two_processes_reload_and_stop_under_load_without_losing_or_doubling_a_run(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("a", resources=(MAPS,))
    for name in OBJECTS:
        rig.clusters["a"].create(MAPS, {"metadata": {"name": name}}, "default")
    rig.start_reconciler()
    rig.start_watcher("a")
    desk = Desk(rig, tmp_path)
    desk.write("words_of_the_test.py", "VERSION = 1\n")
    desk.write("controller.py", CONTROLLER)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(desk.run())
        second = await stack.enter_async_context(desk.run("--no-reload"))
        changing = asyncio.create_task(desk.write_objects())
        stack.callback(changing.cancel)
        await eventually(lambda: len(desk.pids()) == 2, WITHIN)

        # A mistake is reported with its place; nothing runs until it is fixed.
        desk.write("controller.py", "import fleetbus\nc = fleetbus.Controller('c'\n")
        await eventually(lambda: desk.has_said("not running; waiting for a change"), WITHIN)
        assert desk.has_said("controller.py changed")
        assert desk.has_said("controller.py", "line 2")
        desk.write("words_of_the_test.py", "VERSION = 2\n")
        desk.write("controller.py", CONTROLLER)
        await eventually(lambda: desk.pids(version=2), WITHIN)

        # One is stopped gracefully: the other takes over.
        second.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(second.wait(), WITHIN.total_seconds()) == 0
        changing.cancel()
        turns = await changing
        await eventually(lambda: desk.last_turns() == turns, WITHIN)
        await rig.quiet("noter")
        first.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(first.wait(), WITHIN.total_seconds()) == 0
    notes = desk.notes()
    assert overlaps(notes) == []
    cut_off = [note["name"] for note in notes if note["what"] == "start"]
    for note in notes:
        if note["what"] == "end":
            cut_off.remove(note["name"])
    assert cut_off == []


@pytest.mark.slow
@pytest.mark.timeout(600)  # as above
async def test_the_projector_is_hosted_where_the_fleet_has_none_and_leaves_when_it_likes(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("a", resources=(MAPS,))
    rig.start_watcher("a")
    desk = Desk(rig, tmp_path)
    desk.write("words_of_the_test.py", "VERSION = 1\n")
    desk.write("controller.py", CONTROLLER)

    async def change(turn: str) -> None:
        rig.clusters["a"].patch(MAPS, "default", "o", {"data": {"turn": turn}})
        await eventually(lambda: desk.last_turns() == {"o": turn}, WITHIN)

    async with desk.run("--no-reload") as first:
        await eventually(lambda: desk.has_said("projector_started"), WITHIN)
        rig.clusters["a"].create(MAPS, {"metadata": {"name": "o"}}, "default")
        await eventually(lambda: desk.last_turns() == {"o": ""}, WITHIN)
        await change("alone")
        rig.start_reconciler()  # a projector appears: both serve
        await change("two projectors")
        first.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(first.wait(), WITHIN.total_seconds()) == 0
    rig.clusters["a"].patch(MAPS, "default", "o", {"data": {"turn": "without a controller"}})
    desk.said.clear()
    async with desk.run("--no-reload"):
        await eventually(lambda: desk.last_turns() == {"o": "without a controller"}, WITHIN)
        await change("apart")
    assert not desk.has_said("projector_started")


@pytest.mark.slow
@pytest.mark.timeout(600)  # as above
async def test_the_projector_that_ended_with_its_terminal_goes_on_in_the_other_one(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("a", resources=(MAPS,))
    rig.start_watcher("a")
    desk = Desk(rig, tmp_path)
    desk.write("words_of_the_test.py", "VERSION = 1\n")
    desk.write("controller.py", CONTROLLER)
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "o"}}, "default")
    async with desk.run("--no-reload") as first:
        await eventually(lambda: desk.has_said("projector_started"), WITHIN)
        await eventually(lambda: desk.last_turns() == {"o": ""}, WITHIN)
        desk.said.clear()
        async with desk.run("--no-reload"):
            await eventually(lambda: desk.has_said("controllers_started"), WITHIN)
            first.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(first.wait(), WITHIN.total_seconds()) == 0
            rig.clusters["a"].patch(MAPS, "default", "o", {"data": {"turn": "alone"}})
            await eventually(lambda: desk.last_turns() == {"o": "alone"}, WITHIN)
            await eventually(lambda: desk.has_said("projector_started"), WITHIN)
            await rig.quiet("noter")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--no-projector",)])
async def test_without_nats_it_says_what_it_waits_for(
    open_rig: OpenRig, tmp_path: pathlib.Path, options: tuple[str, ...]
) -> None:
    rig = await open_rig("a", resources=(MAPS,))
    rig.shared = rig.shared.model_copy(update={"nats_url": "nats://127.0.0.1:1"})
    desk = Desk(rig, tmp_path)
    desk.write("words_of_the_test.py", "VERSION = 1\n")
    desk.write("controller.py", CONTROLLER)
    async with desk.run("--no-reload", *options):
        await eventually(lambda: desk.has_said("waiting_for_nats", "127.0.0.1:1"), WITHIN)


@each_row(
    ("ending", "handler", "status"),
    [
        ("time.sleep(60)", "SIG_DFL", 0),  # it ends by our signal
        ("sys.exit(3)", "SIG_IGN", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIG_IGN", 137),
    ],
)
def test_the_status_after_ctrl_c_is_that_of_an_ordinary_end_however_the_child_ended(
    ending: str, handler: str, status: int
) -> None:
    code = "import os, signal, sys, time"
    code += f"; signal.signal(signal.SIGTERM, signal.{handler})"
    code += f"; os.kill(os.getppid(), signal.SIGINT); {ending}"
    assert Reloader([sys.executable, "-c", code], []).run() == status


# --- what is watched ------------------------------------------------------------------------------


def test_the_modules_that_a_module_imports_are_watched_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a_part_to_watch.py").write_text("NAME = 'x'\n")
    module = tmp_path / "whole.py"
    module.write_text(
        "import fleetbus, a_part_to_watch\n"
        "c = fleetbus.Controller(a_part_to_watch.NAME)\n"
        "c.watch('v1/pods')\n"
        "@c.reconcile\n"
        "async def f(request, fleet): ...\n"
    )
    load_controllers([str(module)])
    files = local_files()
    assert {str(module), str(tmp_path / "a_part_to_watch.py")} <= set(files)
    assert not [file for file in files if "site-packages" in file]


@pytest.mark.parametrize(
    "mistake", ["import fleetbus, not_there_yet", "x = (", "raise ValueError(1)"]
)
def test_where_a_mistake_is_and_where_its_cure_may_come_is_watched(
    tmp_path: pathlib.Path, mistake: str
) -> None:
    (tmp_path / f"part_{abs(hash(mistake))}.py").write_text(mistake)
    module = tmp_path / "whole.py"
    module.write_text(f"import part_{abs(hash(mistake))}\n")
    with pytest.raises(ConfigError) as error:
        load_controllers([str(module)])
    files = local_files(error.value)
    assert str(tmp_path / f"part_{abs(hash(mistake))}.py") in files
    assert str(tmp_path) in files


def test_the_addresses_of_a_fleet_of_dev_are_watched_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = tmp_path / ".fleetbus" / "dev" / "stack.json"
    stack.parent.mkdir(parents=True)
    stack.write_text(json.dumps({"pid": os.getpid(), "clusters": ["hub"], "nats_url": "nats://x"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    module = tmp_path / "whole.py"
    module.write_text(
        "import fleetbus\n"
        "c = fleetbus.Controller('c')\n"
        "c.watch('v1/pods')\n"
        "@c.reconcile\n"
        "async def f(request, fleet): ...\n"
    )
    for text, is_loaded in ((module.read_text(), True), ("x = (", False)):
        module.write_text(text)
        parent, child = socket.socketpair()
        monkeypatch.setenv("FLEETBUS_RUN_PIPE", str(child.detach()))
        pipe = ParentPipe()
        with parent, parent.makefile("rb") as lines, ThreadPoolExecutor() as threads:
            # The whole test run has many files: their names may fill the pipe.
            line = threads.submit(lines.readline)
            with nullcontext() if is_loaded else pytest.raises(ConfigError):
                load_and_report([str(module)], pipe, resolve_target())
            pipe.close()
            report = json.loads(line.result())
        assert report["loaded"] is is_loaded
        assert {str(stack), str(module)} <= set(report["files"])


def test_an_incomplete_controller_is_reported_with_its_line(tmp_path: pathlib.Path) -> None:
    module = tmp_path / "half.py"
    module.write_text("import fleetbus\n\nc = fleetbus.Controller('half')\nc.watch('v1/pods')\n")
    with pytest.raises(ConfigError, match=r"'half' has no @reconcile function \(.*half.py:3\)"):
        load_controllers([str(module)])


def test_a_file_has_changed_once_it_is_stable(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("1")
    watch = FileWatch([file])
    assert watch.changed() == ""
    file.write_text("22")
    assert watch.changed() == ""  # perhaps half of it
    file.write_text("333")
    assert watch.changed() == ""
    assert watch.changed() == "x.py"
    watch = FileWatch([file])
    file.unlink()
    assert [watch.changed(), watch.changed()] == ["", "x.py"]
