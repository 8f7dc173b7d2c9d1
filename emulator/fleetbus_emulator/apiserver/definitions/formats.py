"""The formats of strings and numbers that Kubernetes checks in custom resources."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_MOMENT = 100  # characters; no client has smaller parts of a second
REMEMBERED = 10_000  # the same few times are read again and again
_MOMENT = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]\d{2}:\d{2})"
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DURATION = re.compile(r"[-+]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)|\d+\s*[a-z]+")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_HOST = re.compile(r"(?i)[a-z0-9]([-a-z0-9]{0,62}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,62}[a-z0-9])?)*")
_MAC = re.compile(r"(?i)[0-9a-f]{2}([:-])[0-9a-f]{2}(\1[0-9a-f]{2}){4}(\1[0-9a-f]{2}){0,2}")
_URI = re.compile(r"(?i)[a-z][a-z0-9+.-]*:\S+|/\S*")


def is_of_format(form: str, value: Any) -> bool:
    """Whether a value is of a format; every value is of one that is not known."""
    if isinstance(value, str):
        check = _TEXTS.get(form)
        return check is None or check(value)
    bits = {"int32": 31, "int64": 63}.get(form)
    if bits is None or isinstance(value, bool) or not isinstance(value, int):
        return True
    return -(2**bits) <= value < 2**bits


def _is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None and _parses(date.fromisoformat, text)


def _is_moment(text: str) -> bool:
    return len(text) <= LONGEST_MOMENT and _is_short_moment(text)


@lru_cache(maxsize=REMEMBERED)
def _is_short_moment(text: str) -> bool:
    return _MOMENT.fullmatch(text) is not None and _parses(date.fromisoformat, text[:10])


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _is_network(text: str) -> bool:
    return "/" in text and _parses(ipaddress.ip_interface, text)


def _matching(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


_TEXTS: dict[str, Callable[[str], bool]] = {
    "byte": _is_base64,
    "cidr": _is_network,
    "date": _is_date,
    "date-time": _is_moment,
    "datetime": _is_moment,
    "duration": _matching(_DURATION),
    "email": _matching(_EMAIL),
    "hostname": _matching(_HOST),
    "ipv4": lambda text: _parses(ipaddress.IPv4Address, text),
    "ipv6": lambda text: _parses(ipaddress.IPv6Address, text),
    "mac": _matching(_MAC),
    "uri": _matching(_URI),
    "uuid": _matching(_UUID),
}
