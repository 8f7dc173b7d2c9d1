"""The secret that keeps the message ids of a cluster unpredictable for other clusters (rule B3).

Its watchers and the projector share it, so that the server drops duplicates among them. If the
bucket is lost a new one is created, and duplicates across that moment are stored; the order guard
of the snapshot drops them (rule P2).
"""

from __future__ import annotations

import secrets
from typing import Final

from fleetbus.bus.key_value import KeyValue
from fleetbus_proto.keys import kv_message_key

KEY_BYTES: Final = 32


async def message_key(kv: KeyValue, cluster: str) -> bytes:
    """Read the key of a cluster, or create it by compare-and-set.

    Raises:
        BusError: it could not be read or written.
    """
    name = kv_message_key(cluster)
    while True:
        entry = await kv.get(name)
        if entry is not None and len(entry.value) == KEY_BYTES:
            return entry.value
        new_key = secrets.token_bytes(KEY_BYTES)
        if await kv.update(name, new_key, entry.revision if entry is not None else 0) is not None:
            return new_key
