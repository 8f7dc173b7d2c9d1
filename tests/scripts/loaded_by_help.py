"""Prints the help of the command line, and then which heavy modules that took, as JSON."""

from __future__ import annotations

import json
import sys

from fleetbus.cli.main import main

_HEAVY = {"aiohttp", "nats", "redis", "kubernetes_asyncio", "fastapi", "msgspec"}

if __name__ == "__main__":
    sys.argv = ["fleetbus", "--help"]
    try:
        main()
    finally:
        print(json.dumps(sorted(_HEAVY & sys.modules.keys())), file=sys.stderr)
