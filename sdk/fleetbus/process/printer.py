"""The only way from a command to a terminal, which obeys control characters.

Names, messages and annotations are written by users of member clusters: `ESC [ 2 K` in one of them
could hide a line of a plan, a bidirectional override could reverse a name (rule S11). So every
character that is not printed as itself is replaced by `?`, also in a pipe, which may end in a pager
or a log. JSON and YAML escape such characters, so that a program reads the value as it is.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterable
from io import TextIOWrapper
from types import TracebackType
from typing import Final, Literal

Style = Literal["", "bold", "green", "magenta", "red", "yellow"]
_CODES: Final = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "magenta": 35}
_PLAIN: Final = "\x1b[0m"
_ERASE: Final = "\r\x1b[K"
_NOT_PRINTED: Final = re.compile(r"[^ -~\n]")
"""Candidates: Python's `isprintable` decides about what is not ASCII."""


def printable(text: str) -> str:
    """The text with `?` in place of each character that is not printed as itself."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def printable_lines(text: str) -> str:
    """The same, but line feeds and tabs stay: for texts whose lines are meant."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def is_watched() -> bool:
    """Whether stderr is a terminal, where somebody may wait for progress."""
    return sys.stderr.isatty()


def has_colours() -> bool:
    """Whether stdout is a terminal, and nobody has said NO_COLOR."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal() and not plain


def line(text: str = "", *, style: Style = "", flush: bool = False) -> None:
    """Print one line; a line feed in the text cannot begin another.

    Args:
        text: the line.
        style: its colour, where there are colours.
        flush: whether a reader of a pipe waits for this line.
    """
    text = printable(text)
    if style and has_colours():
        text = f"\x1b[{_CODES[style]}m{text}{_PLAIN}"
    sys.stdout.write(f"{text}\n")
    if flush:
        sys.stdout.flush()


def lines(texts: Iterable[str]) -> None:
    """Print several lines."""
    for text in texts:
        line(text)


def block(text: str, *, flush: bool = False) -> None:
    """Print several lines in one string, such as a table or YAML, whose parts contain none."""
    sys.stdout.write(f"{printable_lines(text)}\n")
    if flush:
        sys.stdout.flush()


def json_text(text: str, *, flush: bool = False) -> None:
    """Print a JSON document: outside of ASCII, what is not printed as itself is escaped.

    Args:
        text: the document, in which such characters occur in strings only.
        flush: whether a reader of a pipe waits for it.
    """
    sys.stdout.write(f"{_NOT_PRINTED.sub(_escape, text)}\n")
    if flush:
        sys.stdout.flush()


def value(text: str) -> None:
    """Print values as they are into a pipe, like `-o jsonpath`; a terminal gets them printable."""
    sys.stdout.write(printable_lines(text) if is_terminal() else text)


def note(text: str) -> None:
    """Print a note, a warning or an error on stderr; its further lines are indented."""
    sys.stderr.write(f"{printable_lines(text).rstrip().replace(chr(10), chr(10) + '  ')}\n")
    sys.stderr.flush()


def note_block(text: str) -> None:
    """Print several lines on stderr, such as how a command is used."""
    sys.stderr.write(f"{printable_lines(text).rstrip()}\n")
    sys.stderr.flush()


def status(text: str) -> None:
    """Show how far a command is, on the current line of a terminal at stderr."""
    sys.stderr.write(f"{_ERASE}{printable(text)}")
    sys.stderr.flush()


def clear_status() -> None:
    """Erase that line."""
    sys.stderr.write(_ERASE)
    sys.stderr.flush()


def replace_unencodable() -> None:
    """Let stdout replace what its encoding lacks, instead of failing."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def flush() -> None:
    """Hand on what was printed, before another program prints or a reader waits."""
    sys.stdout.flush()


def print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an unexpected error, which may quote a cluster; for `sys.excepthook`."""
    note("".join(traceback.format_exception(kind, error, trace)))


def _escape(match: re.Match[str]) -> str:
    letter = match[0]
    if letter.isprintable():
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
