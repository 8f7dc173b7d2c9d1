"""What `fleetbus clusters audit` does."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from fleetbus.bus import KeyValue, connected
from fleetbus.cli.target import resolve_target
from fleetbus.errors import BusError, ConfigError
from fleetbus.redact import without_secrets
from fleetbus.wanted import want_audit
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.keys import kv_incarnation
from fleetbus_proto.subjects import check_cluster

_WITHIN: Final = 10.0


def audit_cluster(name: str, nats_url: str | None) -> int:
    """Ask the cluster's watchers for an audit of everything; answers the exit status.

    Raises:
        ConfigError: the name cannot be one, or NATS is not known.
    """
    try:
        check_cluster(name)
    except InvalidName as e:
        raise ConfigError(str(e)) from e
    url = resolve_target(nats_url=nats_url).require("nats_url")
    try:
        return asyncio.run(_ask(name, url))
    except TimeoutError:
        print(f"fleetbus: no answer from NATS at {without_secrets(url)}", file=sys.stderr)
    except BusError as e:
        print(f"fleetbus: {e}", file=sys.stderr)
    return 1


async def _ask(name: str, url: str) -> int:
    async with asyncio.timeout(_WITHIN), connected(url, name="cli") as bus:
        kv = KeyValue(bus)
        if await kv.get(kv_incarnation(name)) is None:
            print(f"fleetbus: no watcher has ever seen a cluster {name!r}", file=sys.stderr)
            return 1
        await want_audit(bus, kv, name)
    print(f"cluster {name} will be audited; differences are in the projector's log and metrics")
    return 0
