"""Uses what commands leave out when they import our libraries."""

from __future__ import annotations

import sys
from typing import Any

from fleetbus_cli.light_imports import spare_imports

if __name__ == "__main__":
    spare_imports()
    import nats.aio.transport
    import structlog.dev

    assert not {"aiohttp", "rich"} & sys.modules.keys()
    transport: Any = nats.aio.transport
    assert transport.aiohttp

    import aiohttp
    import rich.console

    assert all((structlog.dev, rich.console))
    assert transport.aiohttp.WSMsgType is aiohttp.WSMsgType
