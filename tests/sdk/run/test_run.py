"""A run, and the note that it leaves for the next run of its request."""

from __future__ import annotations

import asyncio

import pytest

from fleetbus.errors import LeaseLostError
from fleetbus.reconcile import Request
from fleetbus.run.current import NOTE_BYTES, ObjectRef, Run, current_run, running
from support.rows import each_row

REQUEST = Request("copier", "eu1", "prod", "web")
WEB = ObjectRef("eu1", "core/pods", "prod", "web")


def ref(name: str) -> ObjectRef:
    return ObjectRef("eu1", "core/pods", "prod", name)


async def test_tasks_and_threads_that_a_run_starts_belong_to_it() -> None:
    run = Run(REQUEST)
    assert current_run() is None
    with running(run):
        assert await asyncio.create_task(_current()) is run
        assert await asyncio.to_thread(current_run) is run
    assert current_run() is None


async def _current() -> Run | None:
    return current_run()


def test_r5_the_next_run_knows_what_the_last_one_wrote() -> None:
    first, second = Run(REQUEST), Run(REQUEST)
    first.note_write(ref("a"), "12", "uid-a")
    first.note_write(ref("b"), "", "uid-b", is_deleted=True)
    first.applied[b"hash"] = "12"
    second.recall(first.note())
    assert second.writes == first.writes
    assert second.earlier == {b"hash": "12"}
    assert second.applied == {}


def test_a_run_that_wrote_nothing_leaves_nothing() -> None:
    assert Run(REQUEST).note() == b""


def test_a_note_of_too_much_keeps_the_newest_writes_and_fits() -> None:
    run = Run(REQUEST)
    for index in range(1000):
        run.note_write(ref(f"object-{index:04}"), str(index), f"uid-{index}")
        run.applied[b"%016d" % index] = str(index)
    note = run.note()
    assert NOTE_BYTES // 2 < len(note) <= NOTE_BYTES
    later = Run(REQUEST)
    later.recall(note)
    assert ref("object-0999") in later.writes
    assert ref("object-0000") not in later.writes


@each_row("note", [b"\xff", b"\x90", b"no msgpack", b"\x92\x91\x01\x90"])
def test_s8_a_note_that_cannot_be_read_is_none(note: bytes) -> None:
    run = Run(REQUEST)
    run.recall(note)
    assert run.writes == {}


def test_r5_a_write_of_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    first, later = Run(REQUEST), Run(REQUEST)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    first.note_write(ref("a"), "12", "uid-a")
    monkeypatch.setattr("time.time", lambda: 1061.0)
    later.recall(first.note())
    assert later.writes == {}


@each_row(
    ("version", "is_behind"),
    [
        ((1, "9"), True),
        ((1, "10"), False),
        ((1, "11"), False),
        ((0, "99"), True),
        ((2, "1"), False),
        ((1, "not-a-number"), False),
    ],
)
def test_p10_older_than_the_trigger_is_behind(version: tuple[int, str], *, is_behind: bool) -> None:
    run = Run(REQUEST, trigger=(1, "10"), own="core/pods")
    assert run.is_behind(WEB, version) is is_behind
    assert not run.is_behind(ref("other"), version)
    assert not run.is_behind(WEB._replace(resource="apps/deployments"), version)


def test_p10_without_a_trigger_or_with_several_own_resources_nothing_is_behind() -> None:
    assert not Run(REQUEST, own="core/pods").is_behind(WEB, (1, "1"))
    assert not Run(REQUEST, trigger=(1, "10")).is_behind(WEB, (1, "1"))


def test_the_first_look_at_an_object_is_the_version_that_was_read() -> None:
    run = Run(REQUEST)
    run.note_read(WEB, (1, "10"))
    run.note_read(WEB, (1, "12"))
    assert run.reads == {WEB: (1, "10")}


def test_r4_without_the_lease_a_run_may_not_write() -> None:
    run = Run(REQUEST, holds=lambda: False)
    with pytest.raises(LeaseLostError, match="nothing was sent"):
        run.require_lease()
    assert run.was_refused
