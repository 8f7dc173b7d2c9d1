"""Messages of a real watcher match proto/asyncapi.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import yaml

from fleetbus_proto import codec
from support.eventually import eventually
from support.rigs.watcher import Rig

DOCUMENT: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "proto" / "asyncapi.yaml").read_text(encoding="utf-8")
)


async def test_every_message_of_a_watcher_is_valid(rig: Rig):
    rig.write("before")
    async with rig.watching():
        rig.write("a")
        rig.write("a", "changed")
        rig.remove("a")
        await eventually(rig.is_mirrored)
    kinds: set[str] = set()
    for stored in await rig.stored():
        kind = type(stored.message).__name__
        kinds.add(kind)
        message = DOCUMENT["components"]["messages"][kind]
        parts = {"components": DOCUMENT["components"]}
        body = msgspec.to_builtins(msgspec.msgpack.decode(codec.encode(stored.message)))
        jsonschema.validate(body, {**message["payload"], **parts})
        headers = {n: v for n, v in stored.headers.items() if n in _HEADERS["properties"]}
        jsonschema.validate(headers, _HEADERS)
    assert kinds == {"Event", "EpochEnd", "Heartbeat"}


_HEADERS = DOCUMENT["components"]["schemas"]["Headers"]
