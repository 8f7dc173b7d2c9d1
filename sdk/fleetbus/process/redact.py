"""Removes credentials from addresses and error messages before they are shown or stored."""

from __future__ import annotations

import base64
import re
from typing import Final

MARK: Final = "<redacted>"
"""The watcher's replacement for a redacted value."""
MARK_OF_BYTES: Final = base64.b64encode(MARK.encode()).decode()
"""The same in base64, for the data of Secrets."""

_BETWEEN_ADDRESSES: Final = re.compile(r",(?=[a-zA-Z][a-zA-Z0-9+.-]*://)")
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|")
_REST: Final = re.compile(r"[?#]")


def without_secrets(addresses: str) -> str:
    """Remove credentials from the address of a server, or several separated by commas.

    User, password, token and the whole query are left out. A malformed address, with a `?` or a `,`
    in the password, loses more than that, never less.
    """
    return ",".join(_without_secrets(address) for address in _BETWEEN_ADDRESSES.split(addresses))


def _without_secrets(address: str) -> str:
    match = _SCHEME.match(address)
    scheme = match[0] if match else ""
    place, *remainder = _REST.split(address.removeprefix(scheme), maxsplit=1)
    if remainder and "@" in remainder[0]:
        return f"{scheme}***"  # it is unclear where the password ends
    return scheme + place.rpartition("@")[2]


# The texts are untrusted, so no pattern may take quadratic time.
_ADDRESS: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s'\"<>]+")
_SECRETS: Final = (
    re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL),
    # The value after a keyword, up to the end of the word or of the quotes.
    re.compile(
        r"(?i)((?:password|passwd|secret|token|api[-_]?key|authorization|credential)s?"
        r"['\"]?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?(\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z)|[^\s,;}\"']+)"
    ),
    re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}"),
    re.compile(r"(?<![\w-])eyJ[\w-]+(?:\.[\w-]*)+"),
)
"""Keys in PEM, values after keywords, tokens."""
_LONG: Final = re.compile(r"[A-Za-z0-9+/_=-]{40,}(?:\.[A-Za-z0-9+/_=-]+)*")
"""Words as long as a token."""
_PIECE: Final = re.compile(r"[a-z]{0,20}|[a-z0-9]{0,12}")
_BETWEEN_PIECES: Final = re.compile(r"[-./_]")
"""The pieces of names and paths, which only look like tokens."""


def without_secret_words(text: str, *, limit: int) -> str:
    """Redact the message of an error for storage: one line, truncated, without credentials.

    It rather removes too much than too little; it cannot recognize a short secret without a keyword
    before it.

    Args:
        text: the message, from user code.
        limit: the most letters of the result.
    """
    # Truncated first to bound the time, with a reserve for what is removed below.
    redacted = _ADDRESS.sub(lambda address: without_secrets(address[0]), text[: 8 * limit])
    for secret in _SECRETS:
        redacted = secret.sub(lambda match: f"{match[1] if match.re.groups else ''}***", redacted)
    redacted = _LONG.sub(lambda match: match[0] if _is_name(match[0]) else "***", redacted)
    return cut(" ".join(redacted.split()), limit)


def cut(text: str, limit: int) -> str:
    """Truncate a message of others to what is kept of it."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _is_name(word: str) -> bool:
    return all(_PIECE.fullmatch(piece) for piece in _BETWEEN_PIECES.split(word))
