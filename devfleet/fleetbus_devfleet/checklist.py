"""The list of parts that a person watches while a stack starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fleetbus_devfleet.console import Console

_REFRESHES_PER_SECOND = 12


class Checklist:
    """Shows each part with a spinner until it is ready; a plain line per part in a pipe.

    Args:
        console: where to.
        title: what the list is of.
    """

    def __init__(self, console: Console, *, title: str) -> None:
        self._console = console
        self._title = title
        self._rows: dict[str, bool] = {}
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=False,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def report(self, name: str, is_ready: bool) -> None:
        """A part is waited for, or is ready."""
        news = self._rows.get(name) != is_ready
        self._rows[name] = is_ready
        if news and is_ready and not self._console.is_terminal:
            self._console.print(f"  ready: {name}")

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 1))
        done = sum(self._rows.values())
        table.add_row(
            "", "", Text(f"{self._title} ({done} of {len(self._rows)} ready)", style="dim")
        )
        for name, is_ready in self._rows.items():
            table.add_row("", Text("✓", style="green") if is_ready else self._spinner, name)
        return table
