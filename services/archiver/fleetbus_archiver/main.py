"""The archiver service: composition root."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.archive.store import ArchiveStore, open_store
from fleetbus.bus.connection import connected
from fleetbus.errors import ArchiveError
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.log_levels import follow_levels
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings, tell_unknown_settings
from fleetbus_archiver import metrics
from fleetbus_archiver.archiver import USUAL, Archiver, Pace
from fleetbus_archiver.pulling import open_puller
from fleetbus_archiver.retention import Retention
from fleetbus_archiver.settings import ArchiverSettings

log = structlog.get_logger()

_HANGS_AFTER: Final = timedelta(minutes=5)
"""Longer than the store may take for one chunk with all its tries."""


async def run(
    settings: ArchiverSettings,
    shared: SharedSettings,
    *,
    health: Health | None = None,
    pace: Pace = USUAL,
) -> None:
    """Archive the stream until cancelled.

    Args:
        settings: where the archive is, and how it is written.
        shared: how to reach NATS.
        health: checks of the process; made here if it is not given.
        pace: the pauses of the archiver.

    Raises:
        ConfigError: the address of the archive is wrong.
        BusError: NATS forbids a subject (rule B13).
    """
    checks = health or Health()
    started = checks.starting()
    metrics.create()
    store = open_store(settings.access, create=True)
    async with (
        checks.serve(shared.health_host, shared.health_port, shared.health_port_file),
        connected(shared.nats, name="archiver", health=checks) as bus,
        open_puller(bus) as puller,
        asyncio.TaskGroup() as group,
    ):
        archiver = Archiver(
            bus=bus,
            puller=puller,
            store=store,
            chunk_bytes=settings.chunk_bytes,
            chunk_age=settings.chunk_age,
            beat=checks.liveness("archiver", _HANGS_AFTER),
            pace=pace,
        )
        checks.ready_when("archive", archiver.trouble)
        await _tidy(store)
        group.create_task(bus.failure(), name="bus failure")
        group.create_task(archiver.run(), name="archiver")
        if settings.keep is not None:
            retention = Retention(store=store, keep=settings.keep, newest=archiver.newest)
            group.create_task(retention.run(), name="retention")
        started()
        log.info("archiver_started", keep=str(settings.keep or "for ever"))


async def _tidy(store: ArchiveStore) -> None:
    try:
        await store.remove_partial()
    except ArchiveError as e:
        # They are no part of the archive; if it cannot be written either, the archiver says so.
        log.warning("unfinished_files_not_removed", error=str(e))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `fleetbus-archiver`."""
    argparse.ArgumentParser(
        prog="fleetbus-archiver",
        description="Archives the events of the fleet in a folder or a bucket; settings are "
        "environment variables FLEETBUS_… and FLEETBUS_ARCHIVER_….",
    ).parse_args(argv)
    return run_service("fleetbus-archiver", _main)


async def _main() -> None:
    shared = load_settings(SharedSettings)
    settings = load_settings(ArchiverSettings)
    set_up_logs(shared.log_format, shared.log_level)
    levels = shared.log_levels_file
    tell_unknown_settings(ArchiverSettings)
    await run_until_stopped(archiver=run(settings, shared), levels=follow_levels(levels))
