"""The consoles of devfleet (rule S11)."""

from __future__ import annotations

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fleetbus_devfleet.console import Console

OBEYED = "\x07\x1b\x7f\x9b\u202e\u200b[8m"
OWN = re.compile(r"\x1b\[[0-9;]*m")


@given(st.text(st.sampled_from(OBEYED + "a ]/\n")))
def test_s11_rich_prints_its_own_styles_and_nothing_that_a_terminal_obeys(text: str):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, highlight=False)
    table = Table("NAME")
    table.add_row(escape(text))
    console.print(f"[red]a[/] {escape(text)}", Panel.fit(Text(text, style="bold")), table)
    output = out.getvalue()
    assert "\x1b[31m" in output
    assert "\x1b[8m" not in output
    plain = OWN.sub("", output)
    assert all(letter.isprintable() or letter == "\n" for letter in plain), plain
