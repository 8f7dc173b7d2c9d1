"""Addresses, errors and objects as they may be shown and stored: without what logs in somewhere."""

from __future__ import annotations

import base64
import re
from typing import Final

MARK: Final = "<redacted>"
"""What the watcher puts in place of a value."""
MARK_OF_BYTES: Final = base64.b64encode(MARK.encode()).decode()
"""The same where clients decode base64: in the data of Secrets."""

_BETWEEN_ADDRESSES: Final = re.compile(r",(?=[a-zA-Z][a-zA-Z0-9+.-]*://)")
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|")
_REST: Final = re.compile(r"[?#]")


def without_secrets(addresses: str) -> str:
    """One address of a server, or several separated by commas, without credentials.

    User, password, token and the whole query are left out. What is no proper address, because a
    password holds a `?` or a `,`, loses rather more than that, and never less.
    """
    return ",".join(_without_secrets(part) for part in _BETWEEN_ADDRESSES.split(addresses))


def _without_secrets(address: str) -> str:
    found = _SCHEME.match(address)
    scheme = found[0] if found else ""
    place, *rest = _REST.split(address.removeprefix(scheme), maxsplit=1)
    if rest and "@" in rest[0]:
        return f"{scheme}***"  # nobody can say where the password ends
    return scheme + place.rpartition("@")[2]


# No pattern may begin anew at each letter and look far from there: texts come from anywhere.
_ADDRESS: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s'\"<>]+")
_SECRETS: Final = (
    re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL),
    # What follows a telling word, up to the end of the word or of the quotation.
    re.compile(
        r"(?i)((?:password|passwd|secret|token|api[-_]?key|authorization|credential)s?"
        r"['\"]?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?(\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z)|[^\s,;}\"']+)"
    ),
    re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}"),
    re.compile(r"(?<![\w-])eyJ[\w-]+(?:\.[\w-]*)+"),
)
"""Keys in PEM, values of telling names, tokens."""
_LONG: Final = re.compile(r"[A-Za-z0-9+/_=-]{40,}(?:\.[A-Za-z0-9+/_=-]+)*")
"""Whatever is as long as a token."""
_PIECE: Final = re.compile(r"[a-z]{0,20}|[a-z0-9]{0,12}")
_BETWEEN_PIECES: Final = re.compile(r"[-./_]")
"""Of names and paths, which only look so."""


def without_secret_words(text: str, *, limit: int) -> str:
    """A text of an error as it may be stored: one line, cut, and without what may log in.

    Rather too much is left out than too little; what it cannot know of is a short secret that no
    word announces.

    Args:
        text: whatever user code raised.
        limit: the most letters of the answer.
    """
    # What is cut first, cannot take long; with room for what is left out below.
    found = _ADDRESS.sub(lambda address: without_secrets(address[0]), text[: 8 * limit])
    for secret in _SECRETS:
        found = secret.sub(lambda match: f"{match[1] if match.re.groups else ''}***", found)
    found = _LONG.sub(lambda match: match[0] if _is_name(match[0]) else "***", found)
    line = " ".join(found.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _is_name(word: str) -> bool:
    return all(_PIECE.fullmatch(piece) for piece in _BETWEEN_PIECES.split(word))
