"""Compare resourceVersions: digit strings of up to 128 bits, by length, then bytes (P2)."""

from __future__ import annotations

import re

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,38}")


def is_comparable(version: str) -> bool:
    """Whether this is a decimal integer without leading zeros, as KEP-5504 promises."""
    return _DECIMAL.fullmatch(version) is not None


def version_key(version: str) -> tuple[int, str]:
    """A sort key that orders digit strings as numbers without making them numbers."""
    return (len(version), version)


def is_newer(version: str, than: str) -> bool:
    """Whether `version` is greater; the empty string is older than everything."""
    return version_key(version) > version_key(than)
