"""The mirror stream that docs/archive.md describes, as an alternative without a service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fleetbus.bus.jetstream import call_jetstream, stream_info
from support.eventually import eventually
from support.rigs.archive import SOURCE, ArchiveRig

PAGE = Path(__file__).parents[2] / "docs" / "archive.md"


async def test_the_documented_mirror_keeps_a_copy_with_the_same_sequences(rig: ArchiveRig) -> None:
    (text,) = re.findall(r"```json\n(\{\n  \"name\".*?)```", PAGE.read_text(), re.DOTALL)
    config: dict[str, Any] = json.loads(text)
    config["max_bytes"] = 1024**2  # of the server's disk, which it reserves
    await rig.publish(*(SOURCE.added(f"w{number}", number) for number in range(1, 4)))
    created = await call_jetstream(rig.bus, f"STREAM.CREATE.{config['name']}", config)
    try:
        for field, value in config.items():
            source = created["config"][field]
            assert (source["name"] if field == "mirror" else source) == (
                value["name"] if field == "mirror" else value
            )

        async def is_copied() -> bool:
            info = await stream_info(rig.bus, config["name"])
            return info is not None and info["state"]["last_seq"] == 3

        await eventually(is_copied)
    finally:
        await rig.bus.request(f"$JS.API.STREAM.DELETE.{config['name']}")
