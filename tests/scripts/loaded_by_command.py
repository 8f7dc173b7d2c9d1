"""Runs the command line, and then prints which heavy modules that took, as JSON on a last line."""

from __future__ import annotations

import json
import sys

from fleetbus_cli.main import main

_HEAVY = {
    *("aiohttp", "asyncio", "fastapi", "kubernetes_asyncio", "msgspec", "nats", "opentelemetry"),
    *("prometheus_client", "pydantic", "pydantic_settings", "redis", "rich", "structlog", "yaml"),
    *("fleetbus_devfleet", "fleetbus_distributor", "fleetbus_emulator"),
}

if __name__ == "__main__":
    sys.argv[0] = "fleetbus"
    try:
        main()
    finally:
        print(f"\n{json.dumps(sorted(_HEAVY & sys.modules.keys()))}", file=sys.stderr)
