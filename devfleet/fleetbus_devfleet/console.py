"""Where devfleet prints for people: rich hands control characters on by itself (rule S11)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from fleetbus.process import printer

_PIPE_WIDTH: Final = 120
"""The width of a pipe, when nobody says."""


class Console(rich.console.Console):
    """Replaces what a terminal would obey in all texts; rich's own styles stay."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render to segments, of which only rich's own control the terminal."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable():
                yield segment
            else:
                yield Segment(printer.printable_lines(text), style)


def lines_console(*, stderr: bool = False) -> Console:
    """A console for lines, which are never wrapped, and whose paths are not coloured apart."""
    return Console(highlight=False, soft_wrap=True, stderr=stderr)


def page_console(*, pipe_width: int = _PIPE_WIDTH) -> Console:
    """A console for tables and panels, as wide as the terminal.

    Args:
        pipe_width: its width in a pipe, unless COLUMNS is set.
    """
    is_pipe = not printer.is_terminal() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=pipe_width if is_pipe else None)
