"""Uses what commands leave out when they import our libraries."""

from __future__ import annotations

import ssl
import sys
from typing import Any

from fleetbus_cli.light_imports import spare_imports

if __name__ == "__main__":
    spare_imports()
    import nats.aio.transport
    import redis.asyncio
    import structlog.dev

    assert not {"aiohttp", "opentelemetry", "rich"} & sys.modules.keys()
    transport: Any = nats.aio.transport
    assert transport.aiohttp

    import aiohttp.connector
    import opentelemetry
    import rich.console

    assert all((redis.asyncio, structlog.dev, opentelemetry, rich.console))
    assert transport.aiohttp.WSMsgType is aiohttp.WSMsgType
    context: Any = vars(aiohttp.connector)["_SSL_CONTEXT_VERIFIED"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert not context.cert_store_stats()["x509"]
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="example.com")
    assert context.cert_store_stats() == ssl.create_default_context().cert_store_stats()
