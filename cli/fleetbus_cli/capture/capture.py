"""Runs `fleetbus capture`. It reads NATS and Redis directly, and writes to neither."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from redis.exceptions import RedisError

from fleetbus.errors import BusError, CaptureError, ConfigError, StoreError
from fleetbus.kube.resource_names import with_plural
from fleetbus.process import printer
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.store import StoreAccess
from fleetbus.process.logs import set_up_logs
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.shards import find_shards
from fleetbus_cli.capture.file import check_place, write_capture
from fleetbus_cli.capture.format import Header
from fleetbus_cli.capture.gather import Gatherer, Selection, missing
from fleetbus_cli.capture.redact import HiddenPath, Redactor
from fleetbus_cli.events.events import parse_since
from fleetbus_cli.nats import connect_nats
from fleetbus_cli.store import connect_store
from fleetbus_cli.target import resolve_target
from fleetbus_cli.unknown import unknown, unknown_cluster
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import ResourceName, parse_resource_name

_SHOW_EVERY: Final = 1.0
_INTERRUPTED: Final = 130
_MIB: Final = 1024 * 1024
_Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """The checked arguments."""

    out: pathlib.Path
    since: timedelta
    clusters: Sequence[str]
    resources: Sequence[ResourceName]
    redactor: Redactor
    force: bool

    @classmethod
    def read(
        cls,
        *,
        out: pathlib.Path,
        since: str,
        clusters: Sequence[str],
        resources: Sequence[str],
        redact: Sequence[str],
        redact_values: bool,
        keep_values: bool,
        force: bool,
    ) -> Self:
        """Check the arguments.

        Raises:
            ConfigError: one is invalid.
            CaptureError: the file must not be written.
        """
        if redact_values and keep_values:
            raise ConfigError("--redact-values and --keep-values contradict each other")
        check_place(out, force=force)
        try:
            names = [with_plural(parse_resource_name(text.lower())[0]) for text in resources]
        except InvalidName as e:
            raise ConfigError(f"--resource: {e}") from e
        paths = [HiddenPath.read(text) for text in redact]
        return cls(
            out=out,
            since=parse_since(since),
            clusters=clusters,
            resources=names,
            redactor=Redactor(env=not keep_values, values=redact_values, paths=paths),
            force=force,
        )


def run_capture(
    options: CaptureOptions, *, nats_url: str | None = None, redis_url: str | None = None
) -> int:
    """Write the file and print a summary; return the exit status.

    Raises:
        UnknownName: a cluster or a resource is unknown.
        CaptureError: the file cannot be written.
        ConfigError: an address is not set.
    """
    set_up_logs("text", "error")
    target = resolve_target(nats_url=nats_url, redis_url=redis_url)
    store = target.require_store()
    nats = target.require_nats() if options.since else None
    try:
        header = asyncio.run(capture(options, store=store, nats=nats, report=_reporter()))
    except KeyboardInterrupt:
        _say("interrupted; nothing was written")
        return _INTERRUPTED
    except (StoreError, BusError, RedisError, OSError) as e:
        _say(f"{e}; nothing was written")
        return 1
    _summarize(options.out, header)
    for text in options.redactor.unmet():
        _say(f"warning: --redact {text} matched nothing: is it misspelt?")
    return 0


async def capture(
    options: CaptureOptions, *, store: StoreAccess, nats: NatsAccess | None, report: _Progress
) -> Header:
    """Capture; without NATS no events.

    Raises:
        StoreError: Redis cannot be read.
        BusError: the stream cannot be read.
        UnknownName: a cluster or a resource is unknown.
        CaptureError: the file cannot be written.
    """
    async with AsyncExitStack() as stack:
        redis: Any = await connect_store(store)
        stack.push_async_callback(redis.aclose)
        bus = None
        if nats is not None:
            bus = await stack.enter_async_context(connect_nats(nats, name="fleetbus-capture"))
        reader = SnapshotReader(redis, await find_shards(redis))
        selection = await _select(options, reader)
        writer = stack.enter_context(write_capture(options.out, force=options.force))
        gatherer = Gatherer(
            reader=reader, bus=bus, writer=writer, redactor=options.redactor, report=report
        )
        return await gatherer.gather(selection)


async def _select(options: CaptureOptions, reader: SnapshotReader) -> Selection:
    names = [record.name for record in await reader.clusters()]
    if not names:
        raise CaptureError("the snapshot has no cluster: there is nothing to capture")
    if name := missing(options.clusters, names):
        raise unknown_cluster(name, names)
    watched = await reader.watched.keys() if options.resources else frozenset[str]()
    keys = [_key_of(resource, watched) for resource in options.resources]
    return Selection(since=options.since, clusters=options.clusters, resources=keys)


def _key_of(resource: ResourceName, watched: Collection[str]) -> str:
    pairs = [key.split("/") for key in sorted(watched)]
    fitting = [
        group
        for group, plural in pairs
        if plural == resource.plural and resource.group in (None, group)
    ]
    if len(fitting) == 1:
        return f"{fitting[0]}/{resource.plural}"
    if fitting:
        both = " and ".join(f"{resource.plural}.{group}" for group in fitting)
        raise ConfigError(f"--resource {resource.plural!r} is ambiguous: {both}")
    plurals = {plural for _, plural in pairs}
    raise unknown(f"resource {resource.plural!r} is not watched", resource.plural, plurals)


def _reporter() -> _Progress:
    """Show progress on stderr, once in a while, where a person looks on."""
    last_shown = time.monotonic()

    def report(objects: int, events: int) -> None:
        nonlocal last_shown
        if printer.is_watched() and time.monotonic() - last_shown > _SHOW_EVERY:
            last_shown = time.monotonic()
            _say(f"{objects:,} objects, {events:,} events")

    return report


def _summarize(path: pathlib.Path, header: Header) -> None:
    size = path.stat().st_size / _MIB
    names = ", ".join(cluster.name for cluster in header.clusters)
    printer.line(f"{path}: {size:.1f} MiB of {names}; events since {header.window.start}")
    hidden = ", ".join(["values of Secrets", *header.redacted])
    printer.line(f"hidden: {hidden}")
    for gap in header.window.gaps:
        printer.line(
            f"gap: {gap.cluster or 'all clusters'}, {gap.start} to {gap.end}: {gap.reason}"
        )
    if not header.hub:
        printer.line(
            "note: the capture has no hub, so `fleetbus rehearse` and `dev up` cannot open it"
        )


def _say(text: str) -> None:
    printer.note(f"fleetbus capture: {text}")
