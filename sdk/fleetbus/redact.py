"""Addresses as they may be shown in logs and errors: without what logs in there."""

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
