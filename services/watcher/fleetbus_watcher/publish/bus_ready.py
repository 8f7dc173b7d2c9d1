"""Waits for the stream and the bucket, which their owner creates (rules B12, B15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

from fleetbus.bus.connection import Bus, NoAnswer, NoStream
from fleetbus.bus.key_value import KeyValue
from fleetbus_proto.keys import KV_BUCKET, kv_incarnation
from fleetbus_proto.subjects import STREAM, status_subject

_FIRST: Final = timedelta(seconds=0.05)
_CAP: Final = timedelta(seconds=5)


async def missing(bus: Bus, kv: KeyValue, cluster: str, replica: str) -> AsyncGenerator[str]:
    """Yield what is missing, again and again with pauses, until both can be used.

    Only what a watcher has the rights to read is requested (S3).
    """
    subject = status_subject(cluster, replica)
    pause = _FIRST
    while True:
        try:
            await bus.request(f"$JS.API.DIRECT.GET.{STREAM}.{subject}")
            await kv.get(kv_incarnation(cluster))
        except (NoStream, NoAnswer) as e:
            yield f"waiting for {STREAM} and {KV_BUCKET}: {e}"
            await asyncio.sleep(pause.total_seconds())
            pause = min(2 * pause, _CAP)
        else:
            return
