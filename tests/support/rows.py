"""A table of cases as one test: what is asked of pure functions needs no fixtures for each row."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


def each_row(
    names: str | Sequence[str], rows: Iterable[Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test once per row, as `pytest.mark.parametrize` does, and report it as one.

    All rows are tried; each failure says which row it is of. Thousands of rows would cost a run
    more as tests of their own than what they check.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    cells = [row if len(columns) > 1 else (row,) for row in rows]
    table = [dict(zip(columns, row, strict=True)) for row in cells]
    assert table, "no rows"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        async def await_rows(**fixtures: Any) -> None:
            failures = list[BaseException]()
            for row in table:
                with _noted(failures, row):
                    await test(**fixtures, **row)
            _raise(failures)

        def run_rows(**fixtures: Any) -> None:
            failures = list[BaseException]()
            for row in table:
                with _noted(failures, row):
                    test(**fixtures, **row)
            _raise(failures)

        run = await_rows if inspect.iscoroutinefunction(test) else run_rows
        functools.update_wrapper(run, test)
        signature = inspect.signature(test)
        fixtures = [p for p in signature.parameters.values() if p.name not in columns]
        run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return decorate


@contextmanager
def _noted(failures: list[BaseException], row: dict[str, Any]) -> Generator[None]:
    try:
        yield
    # `pytest.fail` and a `pytest.raises` in vain are no Exceptions.
    except (Exception, pytest.fail.Exception) as e:  # noqa: BLE001 -- raised behind the last row
        e.add_note("row: " + ", ".join(f"{name}={cell!r}" for name, cell in row.items()))
        failures.append(e)


def _raise(failures: list[BaseException]) -> None:
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} rows", failures)
