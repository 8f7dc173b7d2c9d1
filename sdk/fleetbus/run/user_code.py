"""Marks calls of user code, so that the tasks it starts are not taken for ours."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_is_called: ContextVar[bool] = ContextVar("fleetbus_user_code", default=False)


@contextmanager
def calling_user_code() -> Generator[None]:
    """Mark the block, and all tasks and threads that it starts, as user code."""
    token = _is_called.set(True)
    try:
        yield
    finally:
        _is_called.reset(token)


def mark_user_code() -> None:
    """Mark the rest of the running task, and all tasks and threads that it starts."""
    _is_called.set(True)


def is_user_code() -> bool:
    """Whether the caller is user code, or a task that user code has started."""
    return _is_called.get()
