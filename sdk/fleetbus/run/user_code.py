"""Marks the calls of an author's functions, so that the tasks they start can be told from ours."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_is_called: ContextVar[bool] = ContextVar("fleetbus_user_code", default=False)


@contextmanager
def calling_user_code() -> Generator[None]:
    """Mark the body, and all tasks and threads that it starts."""
    token = _is_called.set(True)
    try:
        yield
    finally:
        _is_called.reset(token)


def is_user_code() -> bool:
    """Whether this code is an author's function, or belongs to a task that one has started."""
    return _is_called.get()
