"""Bearer tokens: their form, and when a JWT expires."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final, cast

_LAST: Final = 253_402_300_799
"""The end of the year 9999: a later time, or one before 1970, could not be shown as a date."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def is_bearer_token(text: str) -> bool:
    """Whether `text` may stand behind `Bearer` in a header (RFC 6750)."""
    return _TOKEN.fullmatch(text) is not None


def read_expiry(token: str) -> float | None:
    """Read when a JWT expires, in seconds since 1970, without verifying it.

    None for one that never does, and for any other token, which does not say.
    """
    return _number(_claims(token).get("exp"))


def read_lifetime(token: str) -> float | None:
    """Read for how many seconds a JWT was issued; None if it does not say."""
    claims = _claims(token)
    issued, expires = _number(claims.get("iat")), _number(claims.get("exp"))
    return None if issued is None or expires is None or expires <= issued else expires - issued


def read_subject(token: str) -> str:
    """Read whom a JWT is about; empty if it does not say."""
    subject = _claims(token).get("sub")
    return subject if isinstance(subject, str) else ""


def _claims(token: str) -> dict[str, Any]:
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004 -- header, claims, signature
        return {}
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", claims) if isinstance(claims, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _LAST else None
