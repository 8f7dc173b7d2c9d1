"""An archiver on a real NATS, in this process or as one of its own, and its archive."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from fleetbus.archive import Access, EventFilter, Hole, StoredEvent, open_archive
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.bus.durables import ARCHIVER_MAX_ACK_PENDING, consumer_info, ensure_consumer
from fleetbus.bus.jetstream import StreamLimits, ensure_stream
from fleetbus.process.health import Health
from fleetbus.process.settings import SharedSettings
from fleetbus_archiver.archiver import Pace
from fleetbus_archiver.main import run
from fleetbus_archiver.settings import ArchiverSettings
from fleetbus_devfleet.processes.children import Child
from fleetbus_proto.admission import subject_of
from fleetbus_proto.codec import encode
from fleetbus_proto.events import Message
from fleetbus_proto.headers import build
from fleetbus_proto.subjects import EVENTS_ALL
from support.eventually import eventually
from support.processes.programs import installed
from support.servers.plain_http import http_client
from support.servers.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

SOURCE: Final = Source()
ALL: Final = EventFilter()
ACK_WAIT: Final = timedelta(seconds=1)
QUICK: Final = Pace(
    poll=timedelta(milliseconds=50),
    first_retry=timedelta(milliseconds=50),
    last_retry=timedelta(milliseconds=200),
)
"""Shorter than the archiver's own: who was killed is waited for that long."""


class ArchiveRig:
    """A stream, and archivers that archive it.

    Args:
        bus: a connection of the test.
        nats_url: its address.
        folder: for files.
        settings: of archivers, without the prefix.
    """

    def __init__(self, bus: Bus, nats_url: str, folder: Path, settings: dict[str, Any]) -> None:
        self.bus = bus
        self.nats_url = nats_url
        self.folder = folder
        self.settings = settings
        self.health = Health()
        self._running: list[asyncio.Task[None]] = []
        self._children: list[Child] = []

    @property
    def access(self) -> Access:
        """Return how to reach the archive."""
        return ArchiverSettings(**self.settings).access

    @property
    def _port_file(self) -> Path:
        return self.folder / "health.port"

    async def problem(self) -> str:
        """Why the archiver of this process is not ready; empty if it has not started."""
        if not self._port_file.exists():
            return ""
        async with http_client(f"http://127.0.0.1:{self._port_file.read_text().strip()}") as client:
            return (await client.get("/readyz")).text

    def start(self, **settings: Any) -> asyncio.Task[None]:
        """Start an archiver in this process."""
        self.health = Health()
        shared = SharedSettings(nats_url=self.nats_url, health_port_file=self._port_file)
        archiver_settings = ArchiverSettings(**(self.settings | settings))
        task = asyncio.create_task(
            run(archiver_settings, shared, health=self.health, pace=QUICK), name="archiver"
        )
        self._running.append(task)
        return task

    def spawn(self, **environment: str) -> Child:
        """Start an archiver as a process of its own."""
        variables = {
            f"FLEETBUS_ARCHIVER_{key.upper()}": str(val) for key, val in self.settings.items()
        }
        child = Child(
            "archiver",
            installed("fleetbus-archiver"),
            log=self.folder / f"archiver-{len(self._children)}.log",
            env=os.environ
            | {"FLEETBUS_NATS_URL": self.nats_url, "FLEETBUS_LOG_LEVEL": "info"}
            | variables
            | environment,
        )
        self._children.append(child)
        return child

    def logs(self) -> str:
        """The logs of the processes."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("archiver-*.log")))

    async def publish(self, *messages: Message) -> None:
        """Put messages on the stream."""
        for message in messages:
            await self.bus.request(
                subject_of(message), encode(message), headers=build(message, MESSAGE_KEY)
            )

    async def events(
        self, where: EventFilter = ALL, *, holes: list[Hole] | None = None, **span: datetime
    ) -> list[StoredEvent]:
        """Read the archive."""
        note = (holes if holes is not None else []).append
        archive = open_archive(self.access)
        return [event async for event in archive.events(where, on_hole=note, **span)]

    async def names(self) -> list[str]:
        """The names of the archived objects, in order."""
        return [event.event.name for event in await self.events()]

    async def archived(
        self, names: Sequence[str], within: timedelta = timedelta(seconds=20)
    ) -> None:
        """Wait until the archive holds exactly these."""

        async def is_archived() -> bool:
            return await self.is_acked() and await self.names() == list(names)

        await eventually(is_archived, within)

    async def is_acked(self) -> bool:
        """Whether all of the stream is acknowledged, and so stored."""
        info = await consumer_info(self.bus, ARCHIVER)
        return info is not None and info["num_pending"] == info["num_ack_pending"] == 0

    async def stop(self) -> None:
        """Stop all archivers."""
        for child in self._children:
            await child.stop()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()


@asynccontextmanager
async def archive_rig(
    nats_url: str,
    folder: Path,
    *,
    s3: S3Server | None = None,
    limits: StreamLimits | None = None,
    **settings: Any,
) -> AsyncGenerator[ArchiveRig]:
    """A stream with the archiver's durable; the archive is a bucket, or a folder."""
    if s3 is None:
        (folder / "archive").mkdir(exist_ok=True)
        where: dict[str, Any] = {"url": f"file://{folder}/archive"}
    else:
        where = bucket_settings(s3, folder)
    async with connected(nats_url, name="test") as bus:
        await ensure_stream(bus, limits)
        await ensure_consumer(
            bus,
            ARCHIVER,
            [EVENTS_ALL],
            ack_wait=ACK_WAIT,
            max_ack_pending=ARCHIVER_MAX_ACK_PENDING,
        )
        rig = ArchiveRig(bus, nats_url, folder, {"chunk_age": "1s"} | where | settings)
        try:
            yield rig
        finally:
            await rig.stop()


def bucket_settings(s3: S3Server, folder: Path) -> dict[str, Any]:
    """The settings for a prefix in the bucket of a server, with credentials in files."""
    credentials = folder / "credentials"
    credentials.mkdir(exist_ok=True)
    (credentials / "AWS_ACCESS_KEY_ID").write_text(f"{ACCESS_KEY}\n")
    (credentials / "AWS_SECRET_ACCESS_KEY").write_text(f"{SECRET_KEY}\n")
    return {
        "url": f"s3://{BUCKET}/fleet/one",
        "endpoint": s3.url,
        "region": "eu-west-1",
        "credentials_dir": str(credentials),
    }


def utc_now() -> datetime:
    """The time, aware of its zone."""
    return datetime.now(UTC)
