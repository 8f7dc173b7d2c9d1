"""The voice of the demo: scenes, what is waited for, and what was proved."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from fleetbus.errors import FleetbusError
from fleetbus_devfleet.processes.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from fleetbus_devfleet.console import Console

_POLL = 0.01
_WIDEST = 100


class ClaimError(Exception):
    """Something that the demo claims does not hold; the message says what was found."""


class Narrator:
    """Prints the progress of the demo.

    Args:
        console: where to.

    Attributes:
        proved: how many claims held so far.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.proved = 0
        self._began = time.monotonic()
        self._scene = 0

    @property
    def elapsed(self) -> timedelta:
        """Time since the demo began."""
        return timedelta(seconds=time.monotonic() - self._began)

    def scene(self, title: str, text: str) -> None:
        """Open the next scene."""
        self._scene += 1
        clock = f"{self.elapsed.total_seconds():.0f} s"
        heading = f"[bold]{self._scene}. {escape(title)}[/] [dim]{clock}[/]"
        self.console.print()
        self.console.print(Rule(heading, align="left", style="cyan"), width=self._width)
        self.console.print(Text(text, style="dim"), width=self._width)

    def say(self, text: str) -> None:
        """Print one line; it may have rich's markup."""
        self._print_marked(" ", text)

    def alarm(self, text: str) -> None:
        """Print that a fault was injected."""
        self._print_marked("[bold red]✗[/]", text)

    def show_yaml(self, text: str) -> None:
        """Show a manifest."""
        syntax = Syntax(text.rstrip(), "yaml", background_color="default", padding=(1, 2))
        self.console.print(syntax, width=self._width)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Show a table, as `kubectl get` would; its cells may carry rich's markup.

        What is too wide for the console goes on in the next line: nothing is cut.
        """
        is_narrow = self.console.width < _WIDEST
        gap = 1 if is_narrow else 2
        table = Table(box=None, header_style="bold dim", padding=(0, gap), pad_edge=False)
        for column in columns:
            table.add_column(column, no_wrap=not is_narrow, overflow="fold")
        for row in rows:
            table.add_row(*row)
        indented = Table.grid(padding=(0, 4))
        indented.add_row("", table)
        self.console.print(indented)

    async def prove(
        self, claim: str, check: Callable[[], Awaitable[str]], *, within: timedelta
    ) -> None:
        """Wait until `check` finds nothing wrong, then print the claim and how long it took.

        Args:
            claim: what holds then.
            check: answers what is wrong, or an empty text.
            within: how long it may take without progress, which is another answer.

        Raises:
            ClaimError: it does not hold, and nothing has changed for so long.
        """
        began = time.monotonic()
        patience = Patience(within)
        waited = False
        with self.console.status("") as status:
            while wrong := await _ask(check):
                if patience.is_over(wrong):
                    raise ClaimError(f"{claim}. Not so: {patience.waited}; found: {wrong}")
                status.update(self._on_one_line(f"waiting for: {claim}; so far: {wrong}"))
                await asyncio.sleep(_POLL)
                waited = True
        took = timedelta(seconds=time.monotonic() - began)
        duration = f"after {spell(took)}" if waited else "at once"
        self.proved += 1
        self._print_marked("[bold green]✓[/]", f"{escape(claim)} [dim]({duration})[/]")

    @property
    def _width(self) -> int:
        return min(self.console.width, _WIDEST)

    def _on_one_line(self, text: str) -> Text:
        line = Text(text, style="dim")
        line.truncate(self.console.width - 3, overflow="ellipsis")  # 3: the spinner
        return line

    def _print_marked(self, mark: str, text: str) -> None:
        # A grid, so that what does not fit goes on below the text and not below the mark.
        grid = Table.grid(padding=(0, 1))
        grid.add_row("", mark, text)
        self.console.print(grid)


async def _ask(check: Callable[[], Awaitable[str]]) -> str:
    try:
        return await check()
    except FleetbusError as error:  # a refused question is a wrong answer, and may pass
        return str(error)


def spell(time_span: timedelta) -> str:
    """A duration as people read it: `12 ms`, `2.1 s`, `24 s`."""
    seconds = time_span.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
