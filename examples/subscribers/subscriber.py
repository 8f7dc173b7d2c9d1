"""Prints one line for each change in the fleet; knows NATS and msgpack, nothing of fleetbus."""

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import msgpack
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

STREAM = "FLEETBUS_EVENTS"
DURABLE = os.environ.get("SUBSCRIBER_DURABLE", "")  # one that the chart made for us
INBOX = os.environ.get("SUBSCRIBER_INBOX_PREFIX", f"_INBOX.subscriber.{DURABLE}")
FILTER = sys.argv[1] if len(sys.argv) > 1 else "fleetbus.events.>"


def order_of(event: dict[str, Any]) -> tuple[int, int, str]:
    """Greater is newer, deletions included; a resourceVersion is a number of up to 128 bits."""
    version = event["resourceVersion"]
    return (event["incarnation"]["number"], len(version), version)


class Trouble:
    """Tells once that NATS is away or refuses us: the next attempt is a second later."""

    def __init__(self) -> None:
        self._is_reported = False

    async def tell(self, error: Exception):
        if not self._is_reported:
            print("waiting for NATS:", error or type(error).__name__, file=sys.stderr, flush=True)
        self._is_reported = True

    def forget(self):
        self._is_reported = False


def login() -> dict[str, Any]:
    """The options of one connection; the files are read each time, as somebody may rotate them."""
    files = {
        name: os.environ.get(f"FLEETBUS_NATS_{name}_FILE", "")
        for name in ("CREDS", "NKEY", "PASSWORD", "CA", "CERT", "KEY")
    }
    options: dict[str, Any] = {}
    if files["CREDS"]:
        options["user_credentials"] = files["CREDS"]
    if files["NKEY"]:
        options["nkeys_seed"] = files["NKEY"]
    if files["PASSWORD"]:
        options["user"] = os.environ["FLEETBUS_NATS_USERNAME"]
        options["password"] = Path(files["PASSWORD"]).read_text(encoding="utf-8").rstrip("\r\n")
    if files["CA"] or files["CERT"]:
        options["tls"] = ssl.create_default_context(cafile=files["CA"] or None)
    if files["CERT"]:
        options["tls"].load_cert_chain(files["CERT"], files["KEY"])
    if DURABLE:
        options["inbox_prefix"] = INBOX  # no right to any other
    return options


async def connect(trouble: Trouble) -> Client:
    """Connect once. nats-py itself gives up for good when a login is refused, so we try again."""
    urls = os.environ.get("FLEETBUS_NATS_URL") or os.environ.get(
        "NATS_URL", "nats://127.0.0.1:4222"
    )
    return await nats.connect(
        urls.split(","),
        error_cb=trouble.tell,
        allow_reconnect=False,
        max_reconnect_attempts=1,
        reconnect_time_wait=1,
        **login(),
    )


async def read(connection: Client) -> AsyncGenerator[Msg]:
    """Yield messages until the connection ends."""
    stream = connection.jetstream()
    if not DURABLE:  # from the beginning of the stream, each time
        subscription = await stream.subscribe(FILTER, stream=STREAM, ordered_consumer=True)
        async for message in subscription.messages:
            yield message
        return
    bound = await stream.pull_subscribe_bind(durable=DURABLE, stream=STREAM)
    while connection.is_connected:
        with contextlib.suppress(nats.errors.TimeoutError):
            for message in await bound.fetch(100, timeout=5):
                yield message
                await message.ack()


async def main():
    trouble = Trouble()
    newest: dict[tuple[str, ...], Any] = {}  # keep it as long as you may be asked about the object
    while True:
        try:
            connection = await connect(trouble)
            trouble.forget()
            async with connection:
                await follow(connection, newest)
        except (nats.errors.Error, OSError) as e:
            await trouble.tell(e)
        await asyncio.sleep(1)


async def follow(connection: Client, newest: dict[tuple[str, ...], Any]):
    async for message in read(connection):
        if (message.headers or {}).get("fleetbus-format") != "1":
            print("skipped", message.subject, file=sys.stderr)
            continue
        event: dict[str, Any] = cast("Any", msgpack).unpackb(message.data)  # it has no types
        if event["type"] != "event.v1":
            continue
        if event["cluster"] != message.subject.split(".")[2]:
            # Rights are given by subject: whoever wrote this has none for that cluster.
            print("skipped", message.subject, file=sys.stderr)
            continue
        place = tuple(
            event[field] for field in ("cluster", "group", "resource", "namespace", "name")
        )
        if order_of(event) <= newest.get(place, (0, 0, "")):
            continue  # a repeat, or a late arrival
        newest[place] = order_of(event)
        print(event["verb"], *place, event["resourceVersion"], flush=True)


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
