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

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from rich.console import Console

_POLL = 0.05


class ClaimError(Exception):
    """Something that the demo claims does not hold; the message says what was found."""


class Narrator:
    """Tells a person what happens.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()
        self._scene = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def scene(self, title: str, text: str) -> None:
        """Open the next scene."""
        self._scene += 1
        self.console.print()
        heading = f"[bold]{self._scene}. {escape(title)}[/] [dim]{self.elapsed:.0f} s[/]"
        self.console.print(Rule(heading, align="left", style="cyan"))
        self.console.print(f"[dim]{escape(text)}[/]")

    def say(self, text: str) -> None:
        """Say one line; it may carry rich's markup."""
        self.console.print(f"  {text}")

    def show_yaml(self, text: str) -> None:
        """Show a manifest."""
        self.console.print(Syntax(text.rstrip(), "yaml", background_color="default", padding=1))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Show a table, as `kubectl get` would."""
        table = Table(box=None, header_style="bold dim", padding=(0, 3, 0, 2))
        for column in columns:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        self.console.print(table)

    async def prove(
        self, claim: str, check: Callable[[], Awaitable[str]], *, within: timedelta
    ) -> None:
        """Wait until `check` finds nothing wrong, then tell the claim and how long it took.

        Args:
            claim: what holds then.
            check: answers what is wrong, or an empty text.
            within: how long it may take.

        Raises:
            ClaimError: it did not hold in time.
        """
        began = time.monotonic()
        with self.console.status(f"[dim]waiting: {escape(claim)}[/]"):
            while wrong := await check():
                if time.monotonic() - began > within.total_seconds():
                    raise ClaimError(
                        f"not within {within.total_seconds():.0f} s: {claim}. Found: {wrong}"
                    )
                await asyncio.sleep(_POLL)
        took = time.monotonic() - began
        self.console.print(f"  [green]✓[/] {escape(claim)} [dim]({_spell(took)})[/]")


def _spell(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
