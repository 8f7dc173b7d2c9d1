"""Runs `fleetbus events`: prints the stream from a point in time, then follows it if asked to."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from nats.aio.msg import Msg

from fleetbus.archive.lines import to_line
from fleetbus.bus.connection import Bus
from fleetbus.errors import BusError, ConfigError
from fleetbus.kube.resource_names import with_plural
from fleetbus.kube.unwatched_types import how_to_watch
from fleetbus.process import printer
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.clock import now_ms
from fleetbus.process.durations import InvalidTime, parse_duration
from fleetbus.process.logs import set_up_logs
from fleetbus_cli.events.history import History
from fleetbus_cli.nats import connect_nats
from fleetbus_cli.target import resolve_target
from fleetbus_cli.unknown import UnknownName, bus_clusters, bus_resources, unknown, unknown_cluster
from fleetbus_proto.admission import admit
from fleetbus_proto.errors import InvalidName, MalformedMessage
from fleetbus_proto.events import Event
from fleetbus_proto.resources import ResourceName, parse_resource_name
from fleetbus_proto.subjects import STREAM, Verb, check_cluster, events_filter

_ROW: Final = "{:<13} {:<12} {:<9} {:<34} {:<16} {:<40} {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Selects the events to show, and their format."""

    filter: str
    cluster: str
    plural: str
    verb: str
    start: datetime | None
    follow: bool
    output: str

    @classmethod
    def read(
        cls,
        *,
        resource: str,
        cluster: str,
        namespace: str,
        name: str,
        verb: str,
        since: str,
        follow: bool,
        output: str,
    ) -> Self:
        """Check the arguments.

        Raises:
            ConfigError: one of them is invalid.
        """
        if verb and verb not in list(Verb):
            raise ConfigError(f"--verb {verb!r} is not one of {', '.join(Verb)}")
        try:
            resource_name = (
                with_plural(parse_resource_name(resource.lower())[0]) if resource else None
            )
            plural = resource_name.plural if resource_name else ""
            subject = events_filter(
                cluster=check_cluster(cluster) if cluster else "",
                group=(resource_name.group or "") if resource_name else "",
                resource=plural,
                namespace=namespace,
                name=name,
            )
        except InvalidName as e:
            raise ConfigError(str(e)) from e
        return cls(
            filter=subject,
            cluster=cluster,
            plural=plural,
            verb=verb,
            start=datetime.now(UTC) - parse_since(since) if since else None,
            follow=follow,
            output=output,
        )


def parse_since(text: str) -> timedelta:
    """Parse the value of `--since`, such as `90s`, `10m`, `2h` or `1d`.

    Raises:
        ConfigError: it is invalid.
    """
    try:
        return parse_duration(text)
    except InvalidTime as e:
        raise ConfigError(f"--since {e}") from e


def show_events(query: EventQuery, nats_url: str | None) -> int:
    """Print events until the end of the stream or an interrupt; return the exit status.

    It is 1 if NATS does not answer, or refuses us.
    """
    return run_printer(lambda access: _show(query, access), nats_url)


def run_printer(
    show: Callable[[NatsAccess], Coroutine[Any, Any, None]], nats_url: str | None
) -> int:
    """Run a coroutine that prints until it ends or is interrupted; return the exit status."""
    access = resolve_target(nats_url=nats_url).require_nats()
    set_up_logs("text", "warning")  # to stderr: stdout may be piped
    try:
        with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
            asyncio.run(_until_terminated(show(access)))
    except BusError as e:
        printer.note(f"fleetbus: {e}")
        return 1
    return 0


async def _until_terminated(body: Coroutine[Any, Any, None]) -> None:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await body


async def _show(query: EventQuery, access: NatsAccess) -> None:
    async with connect_nats(access, name="fleetbus-events") as bus:
        await _require_known(bus, query)
        if query.output == "table":
            printer.line(_head(), flush=True)
        async with open_messages(
            bus, subject=query.filter, start=query.start, follow=query.follow
        ) as messages:
            count = 0
            while (message := await messages()) is not None:
                count += _print(message, query)
            if not count:
                printer.note("No events found.")


async def _require_known(bus: Bus, query: EventQuery) -> None:
    """Reject a cluster or resource that no watcher watches, once any watcher has reported.

    Raises:
        UnknownName: the cluster or resource is unknown.
    """
    try:
        clusters = await bus_clusters(bus) if query.cluster else set[str]()
        resources = await bus_resources(bus) if query.plural else set[str]()
    except BusError:
        return  # the stream can still have events
    if clusters and query.cluster not in clusters:
        raise unknown_cluster(query.cluster, clusters)
    plurals = {key.rpartition("/")[2] for key in resources}
    if plurals and query.plural not in plurals:
        message = f"{query.plural} is not watched in any cluster of the fleet"
        if how := how_to_watch([ResourceName(None, None, query.plural)]):
            raise UnknownName(f"{message}; {how}")
        raise unknown(message, query.plural, plurals)


@asynccontextmanager
async def open_messages(
    bus: Bus, *, subject: str, start: datetime | None, follow: bool, stream: str = STREAM
) -> AsyncGenerator[Callable[[], Awaitable[Msg | None]]]:
    """Yield a function that returns the next message, or None at the end.

    Raises:
        BusError: there is no stream, we may not read it, or NATS does not answer.
    """
    if start is None:
        subscription = await bus.nc.subscribe(subject)
        # A refusal of it ends the block, which waits for the next message.
        async with bus.refusals.until_refused(subject, is_answered=False):
            yield lambda: subscription.next_msg(timeout=None)
        return
    history = History(bus, subject=subject, start=start, follow=follow, stream=stream)
    await history.open()
    try:
        yield history.next
    finally:
        await history.aclose()


def _head() -> str:
    return _ROW.format(
        "TIME", "CLUSTER", "VERB", "RESOURCE", "NAMESPACE", "NAME", "RESOURCEVERSION"
    )


def _print(message: Msg, query: EventQuery) -> bool:
    """Print an event; returns whether it matched the query."""
    try:
        event = admit(message.subject, message.headers, message.data, now_ms=now_ms())
    except MalformedMessage as e:
        printer.line(f"# invalid message on {message.subject}: {e}", flush=True)
        return True
    if not isinstance(event, Event):
        return False
    if (query.verb and event.verb != query.verb) or (
        query.plural and event.resource != query.plural
    ):
        return False
    if query.output == "json":
        printer.json_text(to_line(event), flush=True)
    else:
        printer.line(_row(event), flush=True)
    return True


def _row(event: Event) -> str:
    group = "" if event.group == "core" else f".{event.group}"
    verb = f"{event.verb.value}{'?' if event.left_selection else ''}"
    return _ROW.format(
        event.observed_at[11:23],
        event.cluster,
        verb,
        f"{event.resource}{group}",
        event.namespace or "-",
        event.name,
        event.resource_version,
    )
