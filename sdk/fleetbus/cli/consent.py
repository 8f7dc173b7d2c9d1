"""What `fleetbus clusters accept` does."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from fleetbus.bus import KeyValue, connected
from fleetbus.cli.target import resolve_target
from fleetbus.consent import consent, read_refused
from fleetbus.errors import BusError, ConfigError
from fleetbus.redact import without_secrets
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster

_WITHIN: Final = 10.0


def accept_cluster(name: str, uid: str, nats_url: str | None) -> int:
    """Consent to the cluster that answers, or to the one with this UID; answers the exit status.

    Raises:
        ConfigError: the name cannot be one, or NATS is not known.
    """
    try:
        check_cluster(name)
    except InvalidName as e:
        raise ConfigError(str(e)) from e
    url = resolve_target(nats_url=nats_url).require("nats_url")
    try:
        return asyncio.run(_accept(name, uid, url))
    except TimeoutError:
        print(f"fleetbus: no answer from NATS at {without_secrets(url)}", file=sys.stderr)
    except BusError as e:
        print(f"fleetbus: {e}", file=sys.stderr)
    return 1


async def _accept(name: str, uid: str, url: str) -> int:
    async with asyncio.timeout(_WITHIN), connected(url, name="cli") as bus:
        kv = KeyValue(bus)
        refused = await read_refused(kv, name)
        chosen = uid or refused
        if not chosen:
            print(f"fleetbus: no other cluster answers under {name!r}", file=sys.stderr)
            return 1
        await consent(bus, kv, name, chosen)
    print(f"cluster {name} may be the one whose kube-system has UID {chosen}")
    if refused and refused != chosen:
        print(f"fleetbus: but the one that answers now has UID {refused}", file=sys.stderr)
    return 0
