"""proto/README.md: its examples run as they stand, its tables name what the code has."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from nats.aio.client import Client
from nats.js.client import JetStreamContext

from fleetbus_proto import codec, headers, keys, subjects
from fleetbus_proto.events import AuditPage, EpochEnd, Event, Heartbeat, ResourceStatus, WatchSet
from fleetbus_proto.subjects import Verb
from support.rows import each_row
from support.wire.samples import GOLDEN, MESSAGE_KEY, event

README = Path(__file__).parents[2] / "proto" / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


async def _publish(jetstream: JetStreamContext, message: Event) -> None:
    m = message
    subject = subjects.event_subject(
        m.cluster, m.group, m.resource, m.namespace, m.name, m.verb.value
    )
    await jetstream.publish(subject, codec.encode(m), headers=headers.build(m, MESSAGE_KEY))


@asynccontextmanager
async def _run_example(code: str, nats_url: str) -> AsyncGenerator[asyncio.StreamReader]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        env=os.environ | {"NATS_URL": nats_url},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        await process.wait()


async def test_the_example_prints_each_change_once_and_no_late_arrival(nats: Client, nats_url: str):
    jetstream = nats.jetstream()
    await jetstream.add_stream(name=subjects.STREAM, subjects=[subjects.EVENTS_ALL])
    web = b'{"spec":{"replicas":3}}'
    reported = [
        event(verb=Verb.ADDED, resource_version="99", object=web),
        event(verb=Verb.MODIFIED, resource_version="100", object=web),
        event(verb=Verb.MODIFIED, resource_version="98", object=web),  # late
        event(verb=Verb.LISTED, resource_version="100", object=web),  # known
        event(verb=Verb.DELETED, resource_version="101", object=None, degraded="oversized"),
    ]
    for message in reported:
        await _publish(jetstream, message)
    async with asyncio.timeout(20), _run_example(BLOCKS[0], nats_url) as output:
        lines = [(await output.readline()).decode().strip() for _ in range(3)]
    assert lines == [
        "added eu1 prod web replicas=3",
        "modified eu1 prod web replicas=3",
        "deleted eu1 prod web replicas=?",
    ]


def test_the_recipe_decodes_every_token_of_the_vector():
    scope: dict[str, Any] = {}
    exec(BLOCKS[1], scope)  # noqa: S102 -- the page's own code
    decode = cast("Callable[[str], str]", scope["decode_token"])
    rows = json.loads((README.parent / "golden" / "tokens.json").read_text(encoding="ascii"))
    for row in rows:
        assert decode(row["token"]) == row["text"]
    assert decode(subjects.encode_token("\ud800")) == "\ud800"


@each_row("kind", [Event, EpochEnd, AuditPage, Heartbeat, ResourceStatus, WatchSet])
def test_the_page_names_every_field_of_every_message(kind: type[msgspec.Struct]):
    missing = [
        f.encode_name for f in msgspec.structs.fields(kind) if f"`{f.encode_name}`" not in TEXT
    ]
    assert missing == []


def test_the_page_names_every_header_and_every_type():
    for message in GOLDEN.values():
        assert f"`{message.__struct_config__.tag}`" in TEXT
        assert [
            name for name in headers.build(message, MESSAGE_KEY) if f"`{name}`" not in TEXT
        ] == []


def test_the_page_names_every_key_of_the_bucket():
    documented = [
        keys.kv_incarnation("<cluster>"),
        keys.kv_message_key("<cluster>"),
        keys.kv_accepted("<cluster>"),
        keys.kv_identity("<cluster>"),
        keys.kv_watch_spec("<cluster>"),
        keys.kv_checkpoint("<cluster>", "<group>", "<resource>", "<scope>"),
        keys.kv_epoch("<cluster>", "<group>", "<resource>"),
        keys.kv_grant("<cluster>", "<group>", "<resource>"),
        keys.kv_resync("<cluster>", "<group>", "<resource>"),
        keys.kv_audit("<cluster>", "<group>", "<resource>", "<scope>"),
        keys.kv_audit_request("<cluster>"),
        keys.kv_types("<cluster>"),
        keys.kv_reader("<controller>", "<group>"),
        keys.kv_pool_member("<member>"),
        keys.kv_pool_lease("<cluster>"),
    ]
    assert [key for key in documented if f"`{key}`" not in TEXT] == []


def test_every_vector_has_a_message_of_its_own():
    assert len({codec.encode(message) for message in GOLDEN.values()}) == len(GOLDEN)
