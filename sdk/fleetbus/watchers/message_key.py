"""The secret that makes the ids of a cluster's messages unknown to other clusters (rule B3).

Its watchers and the projector use one, or they would not drop each other's repeats. If the bucket
is lost another one is made, and repeats across that moment are stored; the order guard of the
snapshot drops them (P2).
"""

from __future__ import annotations

import secrets
from typing import Final

from fleetbus.bus.key_value import KeyValue
from fleetbus_proto.keys import kv_message_key

KEY_BYTES: Final = 32


async def message_key(kv: KeyValue, cluster: str) -> bytes:
    """The key of a cluster; made by compare-and-set if there is none.

    Raises:
        BusError: nothing is known.
    """
    name = kv_message_key(cluster)
    while True:
        entry = await kv.get(name)
        if entry is not None and len(entry.value) == KEY_BYTES:
            return entry.value
        made = secrets.token_bytes(KEY_BYTES)
        if await kv.update(name, made, entry.revision if entry is not None else 0) is not None:
            return made
