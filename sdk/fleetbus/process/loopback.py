"""Addresses of this machine, and whether members may have them: for development only."""

from __future__ import annotations

import ipaddress
import os
from functools import lru_cache
from typing import Final

_VARIABLE: Final = "FLEETBUS_ALLOW_LOOPBACK"


def is_loopback(host: str) -> bool:
    """Whether a host, as in a URL or a setting, is a loopback address or localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def allows_loopback() -> bool:
    """Whether an uploaded kubeconfig may lead to this machine (rule S7).

    Raises:
        ConfigError: the setting is neither true nor false.
    """
    return _parse(os.environ.get(_VARIABLE))


def allow_loopback() -> None:
    """Allow loopback for this process, which works on a fleet of `fleetbus dev`."""
    os.environ[_VARIABLE] = "1"


@lru_cache
def _parse(text: str | None) -> bool:
    # Called for each address of the fleet, and 0.25 ms each time without the cache. The usual
    # values need no pydantic, for which a command would wait a tenth of a second.
    if text in (None, "1"):
        return text is not None
    from fleetbus.process.settings import AddressSettings, load_settings  # noqa: PLC0415

    return load_settings(AddressSettings).allow_loopback
