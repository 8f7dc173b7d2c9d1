"""Runs `fleetbus events --distribution`: prints what became of MultiClusterResources."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from nats.aio.msg import Msg

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus.process.access.nats import NatsAccess
from fleetbus_cli.events.events import open_messages, parse_since, run_printer
from fleetbus_cli.nats import connect_nats
from fleetbus_proto.distribution import AffectedObject, decode_distribution_event
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import (
    DISTRIBUTION_STREAM,
    DistributionVerb,
    check_cluster,
    distribution_filter,
)

_ROW: Final = "{:<13} {:<30} {:<12} {:<12} {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionQuery:
    """Selects the events to show, and their format."""

    filter: str
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
        if resource:
            raise ConfigError(
                f"--distribution is about MultiClusterResources, not {resource}: choose one with "
                "--namespace and --name"
            )
        if verb and verb not in list(DistributionVerb):
            raise ConfigError(f"--verb {verb!r} is not one of {', '.join(DistributionVerb)}")
        try:
            place = check_cluster(cluster) if cluster else ""
        except InvalidName as error:
            raise ConfigError(str(error)) from error
        return cls(
            filter=distribution_filter(namespace=namespace, name=name, cluster=place),
            verb=verb,
            start=datetime.now(UTC) - parse_since(since) if since else None,
            follow=follow,
            output=output,
        )


def show_distribution(query: DistributionQuery, nats_url: str | None) -> int:
    """Print events until the end of the stream or an interrupt; return the exit status.

    It is 1 if NATS does not answer, or refuses us.
    """
    return run_printer(lambda access: _show(query, access), nats_url)


async def _show(query: DistributionQuery, access: NatsAccess) -> None:
    async with connect_nats(access, name="fleetbus-events") as bus:
        if query.output == "table":
            printer.line(_ROW.format("TIME", "RESOURCE", "CLUSTER", "EVENT", "MESSAGE"), flush=True)
        async with open_messages(
            bus,
            subject=query.filter,
            start=query.start,
            follow=query.follow,
            stream=DISTRIBUTION_STREAM,
        ) as messages:
            count = 0
            while (message := await messages()) is not None:
                count += _print(message, query)
            if not count:
                printer.note("No events found.")


def _print(message: Msg, query: DistributionQuery) -> bool:
    """Print an event; returns whether it matched the query."""
    event = decode_distribution_event(message.data)
    if event is None:
        printer.line(f"# invalid message on {message.subject}", flush=True)
        return True
    if query.verb and event.event != query.verb:
        return False
    if query.output == "json":
        printer.line(message.data.decode(), flush=True)
        return True
    text = event.message or _listed(event.objects, event.more) or event.reason
    name = f"{event.namespace}/{event.name}"
    printer.line(
        _ROW.format(event.time[11:23], name, event.cluster or "-", event.event.value, text),
        flush=True,
    )
    return True


def _listed(objects: list[AffectedObject], more: int) -> str:
    names = ", ".join(entry.object for entry in objects)
    return f"{names} and {more} more" if more else names
