"""Regular expressions of schemas: those of RE2, which Go's are made after.

Like Go's they take linear time, whatever the pattern and the value; the two engines agree on the
syntax, and where their error messages differ, Go's are used.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol, cast

import re2

if TYPE_CHECKING:
    from collections.abc import Callable

_GO_WORDS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "invalid named capture group": "invalid named capture",
    "pattern too large - compile failed": "expression too large",
}
_Refused = cast("type[Exception]", re2.error)
_TRAILING = "trailing \\"
_ANY_BYTE = r"\C"  # the one thing that RE2 knows and Go does not


class _Pattern(Protocol):
    def search(self, text: str) -> object | None: ...


def pattern_problem(pattern: str) -> str | None:
    """The error of Go's regexp package for a pattern; None if it compiles."""
    if _ANY_BYTE in pattern.replace("\\\\", ""):
        return f"error parsing regexp: invalid escape sequence: `{_ANY_BYTE}`"
    try:
        _compile(pattern)
    except _Refused as error:
        return f"error parsing regexp: {_in_go_words(_text(error.args[0]))}"
    return None


def is_matched(pattern: str, text: str) -> bool:
    """Whether the pattern matches a part of the string."""
    return _compile(pattern).search(text) is not None


def _in_go_words(why: str) -> str:
    if why.startswith(_TRAILING):
        return "trailing backslash at end of expression: ``"
    phrase, colon, where = why.partition(": ")
    return f"{_GO_WORDS.get(phrase, phrase)}{f': `{where}`' if colon else ''}"


def _text(message: bytes | str) -> str:
    return message.decode(errors="replace") if isinstance(message, bytes) else message


@functools.lru_cache(maxsize=1024)
def _compile(pattern: str) -> _Pattern:
    options = re2.Options()
    options.log_errors = False
    compiler = cast("Callable[[str, re2.Options], _Pattern]", re2.compile)
    return compiler(pattern, options)
