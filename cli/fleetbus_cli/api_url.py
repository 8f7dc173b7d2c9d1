"""The address of the query API, as users and files give it."""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

from fleetbus.errors import ConfigError

_PRINTED: Final = re.compile("[!-~]+")


def split_api_url(url: str) -> urllib.parse.SplitResult:
    """Split an address.

    Raises:
        ConfigError: it is none of a server.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # brackets that are not closed, a port that is no number
        parts, is_valid = None, False
    if (
        parts is None
        or not is_valid
        or parts.query
        or parts.fragment
        or not _PRINTED.fullmatch(url)
    ):
        raise ConfigError(f"invalid api_url {url!r}: it must be like http://127.0.0.1:8080")
    return parts
