"""Prints which heavy modules the import of fleetbus takes, with an error and a value object."""

from __future__ import annotations

import sys

import fleetbus

_HEAVY = {"aiohttp", "kubernetes_asyncio", "nats", "redis", "msgspec", "pydantic"}

if __name__ == "__main__":
    assert fleetbus.NotFound
    assert fleetbus.Result
    print(*(_HEAVY & sys.modules.keys()))
