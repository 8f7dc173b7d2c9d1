"""The floor of the watcher benchmark: read, split, cut, pack, publish.

python tests/run.py bench.programs.watcher_floor URL NATS_URL
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
import msgspec

from fleetbus.bus.acks import Ack
from fleetbus.bus.connection import connected
from fleetbus.bus.window import open_window
from fleetbus_proto import codec
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb


class _Line(msgspec.Struct):
    type: str
    object: dict[str, msgspec.Raw]


async def run(url: str, nats_url: str) -> None:
    line_decoder = msgspec.json.Decoder(_Line)
    map_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    text_decoder = msgspec.json.Decoder(str)
    encoder = msgspec.json.Encoder()
    incarnation, rank = Incarnation(1, "u"), Rank("1", 1)

    def settle(_: Ack) -> None:
        pass

    async with (
        connected(nats_url, name="floor") as bus,
        open_window(bus) as window,
        aiohttp.ClientSession(read_bufsize=2**21) as session,
        session.get(url + "/api/v1/pods?watch=true", timeout=aiohttp.ClientTimeout()) as answer,
    ):
        remainder = b""
        async for chunk in answer.content.iter_any():
            *lines, remainder = (remainder + chunk).split(b"\n")
            for line in lines:
                found = line_decoder.decode(line)
                obj = found.object
                metadata = map_decoder.decode(obj["metadata"])
                metadata.pop("managedFields", None)
                obj["metadata"] = msgspec.Raw(encoder.encode(metadata))
                name = text_decoder.decode(metadata["name"])
                uid = text_decoder.decode(metadata["uid"])
                version = text_decoder.decode(metadata["resourceVersion"])
                event = Event(
                    cluster="eu1",
                    incarnation=incarnation,
                    group="core",
                    version="v1",
                    resource="pods",
                    kind="Pod",
                    namespace="n",
                    name=name,
                    uid=uid,
                    resource_version=version,
                    verb=Verb.MODIFIED,
                    epoch=rank,
                    observed_at="2026-01-01T00:00:00.000000Z",
                    object=encoder.encode(obj),
                )
                await window.publish(
                    f"fleetbus.events.eu1.core.pods.n.{name}.modified",
                    codec.encode(event),
                    {"Nats-Msg-Id": f"{uid}:{version}"},
                    settle,
                )


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
