"""Regular expressions of schemas: Go's syntax, run by Python's engine.

The two agree on nearly everything that schemas use. Where Go knows less (lookarounds, backward
references), the pattern is refused as Go refuses it; where Go knows more than can be translated
(Unicode classes), the pattern is accepted and not enforced.
"""

from __future__ import annotations

import functools
import re
import warnings

_PERL_ONLY = re.compile(r"\(\?(?:<?[=!]|>|\(|#|R|&|P=|P>)")
_BACK_REFERENCE = re.compile(r"\\[1-9]")
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7F",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1F\\x7F",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\n\\v\\f\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_UNTRANSLATABLE = re.compile(r"\\[pPCQE]|\[:\^")


def pattern_problem(pattern: str) -> str | None:
    """Why Go refuses a pattern; None if it does not, or nobody can tell."""
    bare = _ESCAPED.sub("", pattern.replace("\\\\", ""))
    if found := _PERL_ONLY.search(bare):
        return f"error parsing regexp: invalid or unsupported Perl syntax: `{found[0]}`"
    if found := _BACK_REFERENCE.search(pattern.replace("\\\\", "")):
        return f"error parsing regexp: invalid escape sequence: `{found[0]}`"
    if _UNTRANSLATABLE.search(pattern):
        return None
    try:
        _compile(_translated(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        return f"error parsing regexp: {error}"
    return None


def python_pattern(pattern: str) -> str | None:
    """The same pattern for Python; None if it cannot be said there."""
    if pattern_problem(pattern) is not None or _UNTRANSLATABLE.search(pattern):
        return None
    return _translated(pattern)


def _translated(pattern: str) -> str:
    for name, characters in _POSIX.items():
        pattern = pattern.replace(f"[:{name}:]", characters)
    return pattern.replace(r"\z", r"\Z")


@functools.lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's doubts about nested sets are not Go's
        return re.compile(pattern)
