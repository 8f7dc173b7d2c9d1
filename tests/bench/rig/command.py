"""The command of a benchmark: each of its sizes is an option.

A benchmark is a module with `Sizes`, a frozen dataclass of numbers whose defaults are those of
`make bench`; `TINY`, the sizes with which `make test` sees whether it still runs; `measure(sizes)`,
which answers figures as JSON has them; and `show(figures)`, which prints them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from fleetbus.process.logs import set_up_logs

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SomeSizes = TypeVar("SomeSizes", bound="DataclassInstance")


def run_command(
    measure: Callable[[SomeSizes], Awaitable[Any]],
    show: Callable[[Any], None],
    tiny: SomeSizes,
    runner: Callable[[Any], Any] = asyncio.run,
) -> None:
    """Measure with the sizes of the command line, and print the figures."""
    sizes = type(tiny)()
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="the figures also as a line of JSON")
    parser.add_argument("--tiny", action="store_true", help="whether it still runs")
    for field in fields(sizes):
        usual: float = getattr(sizes, field.name)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=type(usual), help=f"usually {usual}"
        )
    arguments = vars(parser.parse_args())
    as_json, is_tiny = arguments.pop("json"), arguments.pop("tiny")
    chosen = {name: value for name, value in arguments.items() if value is not None}
    set_up_logs("text", "warning")  # the report is what goes to stdout
    figures = runner(measure(replace(tiny if is_tiny else sizes, **chosen)))
    show(figures)
    if as_json:
        print(json.dumps(figures))
