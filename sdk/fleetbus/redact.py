"""Addresses and errors as they may be shown and stored: without what logs in somewhere."""

from __future__ import annotations

import re
from typing import Final

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


_ADDRESS: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>]+")
_SECRETS: Final = (
    re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL),
    # What follows a telling word, up to the end of the word or of the quotation.
    re.compile(
        r"(?i)((?:password|passwd|secret|token|api[-_]?key|authorization|credential)s?"
        r"['\"]?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?(\"[^\"]*\"|'[^']*'|[^\s,;}\"']+)"
    ),
    re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}"),
    re.compile(r"\beyJ[\w-]+(?:\.[\w-]*)+"),
    re.compile(r"[A-Za-z0-9+/_=-]{40,}(?:\.[A-Za-z0-9+/_=-]+)*"),
)
"""Keys in PEM, values of telling names, tokens, and whatever is as long as one."""


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
    line = " ".join(found.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
