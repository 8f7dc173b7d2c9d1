"""Formats errors for logs, traces and records: bounded, and without secrets.

User code may raise anything: messages that quote a Secret, messages that cannot be formatted,
traces of a thousand frames, groups of a thousand errors. Every reported error is formatted here,
within a few milliseconds, because it runs in the event loop. Values of variables are never shown.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import linecache
import pathlib
import sysconfig
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from fleetbus.process.redact import without_secret_words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

LETTERS: Final = 300
_MOST: Final = 10_000
"""Letters of a message that are examined."""
_FIRST_FRAMES: Final = 4
_LAST_FRAMES: Final = 16
_SOURCE_LETTERS: Final = 160
_SOURCES: Final = 1_000
"""Lines of source code that are remembered; most errors pass through the same ones."""
_CAUSES: Final = 4
_MEMBERS: Final = 4
_NESTED: Final = 2
_LINES: Final = 200
_NOT_THEIRS: Final = tuple(
    f"{folder}/"
    for folder in (
        pathlib.Path(__file__).parents[1],  # all of fleetbus
        pathlib.Path(asyncio.__file__).parent,
        pathlib.Path(concurrent.futures.__file__).parent,
    )
)
_INSTALLED: Final = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")
)
_TURN: Final = asyncio.Handle._run.__code__  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the frame from which the event loop calls


def describe(error: BaseException, *, is_quiet: bool = False, letters: int = LETTERS) -> str:
    """Format an error in one line, `ValueError: boom`.

    Args:
        error: the exception.
        is_quiet: leave its message out: it may quote a Secret.
        letters: the most letters of the message.
    """
    kind = type(error).__name__
    text = "" if is_quiet else without_secret_words(_text(error), limit=letters)
    return f"{kind}: {text}" if text else kind


def user_place(error: BaseException) -> str:
    """The place in user code that led to an error, `/x/share.py:36 in remove`; "" if none.

    That is the innermost call outside fleetbus and the waiting code of asyncio and threads.
    """
    place = ""
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not code.co_filename.startswith(_NOT_THEIRS):
            place = f"{code.co_filename}:{step.tb_lineno} in {code.co_name}"
        step = step.tb_next
    return place


def name_type(result: object) -> str:
    """The name of a result's type, for messages: its value may be anything, even a Secret."""
    return without_secret_words(type(result).__name__, limit=LETTERS)


def render(error: BaseException, *, is_quiet: bool = False) -> str:
    """Format an error with its traceback, causes and members, in Python's order.

    Args:
        error: the exception.
        is_quiet: leave all messages out: they may quote a Secret.
    """
    lines = list(islice(_lines(error, is_quiet=is_quiet, depth=0), _LINES + 1))
    return "\n".join([*lines[:_LINES], "…"] if len(lines) > _LINES else lines)


def render_stack(frame: FrameType) -> str:
    """Format the stack of a thread: its innermost calls, the most recent last.

    The calls that lead to user code are left out. If no call is clearly in user code, for instance
    in code that is installed as a package, the whole iteration of the event loop is shown.
    """
    frames: list[FrameType] = []
    step: FrameType | None = frame
    while step is not None and step.f_code is not _TURN:
        frames.append(step)
        step = step.f_back
    last = max(
        (at for at, inner in enumerate(frames) if _is_theirs(inner)), default=len(frames) - 1
    )
    selected = frames[: min(last + 1, _LAST_FRAMES)]
    return "\n".join(line for inner in reversed(selected) for line in _place(inner, inner.f_lineno))


def _is_theirs(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    # Compiled modules, like uvloop, have the path at which they were compiled.
    return not (name.startswith((*_NOT_THEIRS, *_INSTALLED, "<frozen ")) or name.endswith(".pyx"))


def _text(error: BaseException) -> str:
    try:
        # Lone surrogates, as in names of files, cannot be stored.
        return str(error)[:_MOST].encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 -- user code: even formatting the error may fail
        return "its message cannot be formatted"


def _lines(error: BaseException, *, is_quiet: bool, depth: int) -> Iterator[str]:
    chain = _chain(error)
    for exception, is_cause in reversed(chain):
        if exception.__traceback__ is not None:
            yield "Traceback (most recent call last):"
            yield from _frames(_from_user_code(exception.__traceback__))
        yield describe(exception, is_quiet=is_quiet)
        if isinstance(exception, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", exception)
            yield from _members(group, is_quiet=is_quiet, depth=depth)
        if exception is not error:
            yield ""
            yield (
                "It caused the following:"
                if is_cause
                else "While handling it, another one was raised:"
            )
            yield ""


def _chain(error: BaseException) -> list[tuple[BaseException, bool]]:
    """The error and its causes, each with whether it is the explicit cause of the one before."""
    chain = [(error, False)]
    for _ in range(_CAUSES):
        last, _ = chain[-1]
        before = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if before is None or any(before is exception for exception, _ in chain):
            break
        chain.append((before, last.__cause__ is not None))
    return chain


def _members(
    group: BaseExceptionGroup[BaseException], *, is_quiet: bool, depth: int
) -> Iterator[str]:
    for number, member in enumerate(group.exceptions, start=1):
        if depth == _NESTED or number > _MEMBERS:
            yield f"  | … of {len(group.exceptions)}"
            return
        yield f"  | {number} of {len(group.exceptions)}:"
        for line in _lines(member, is_quiet=is_quiet, depth=depth + 1):
            yield f"  | {line}"


def _from_user_code(trace: TracebackType) -> TracebackType:
    """The trace from the first frame of user code on; the whole one if there is none."""
    step: TracebackType | None = trace
    while step is not None and not _is_theirs(step.tb_frame):
        step = step.tb_next
    return step or trace


def _frames(trace: TracebackType) -> Iterator[str]:
    first: list[TracebackType] = []
    last: deque[TracebackType] = deque(maxlen=_LAST_FRAMES)
    count = 0
    step: TracebackType | None = trace
    while step is not None:
        count += 1
        (first if len(first) < _FIRST_FRAMES else last).append(step)
        step = step.tb_next
    for entry in first:
        yield from _place(entry.tb_frame, entry.tb_lineno)
    if left_out := count - len(first) - len(last):
        yield f"  … {left_out} more"
    for entry in last:
        yield from _place(entry.tb_frame, entry.tb_lineno)


def _place(frame: FrameType, line: int) -> Iterator[str]:
    code = frame.f_code
    yield f'  File "{code.co_filename}", line {line}, in {code.co_name}'
    linecache.lazycache(code.co_filename, frame.f_globals)  # how to read what is in an archive
    if source := _source(code.co_filename, line):
        yield f"    {source}"


@functools.lru_cache(maxsize=_SOURCES)
def _source(file: str, line: int) -> str:
    """Read a line of source code; linecache alone would keep all lines of the file for ever."""
    try:
        return linecache.getline(file, line).strip()[:_SOURCE_LETTERS]
    finally:
        linecache.cache.pop(file, None)
