"""Checks of NATS: the server, the streams, the bucket, and who reads the stream of events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from fleetbus.bus.connection import Bus
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import consumer_info, is_read
from fleetbus.bus.jetstream import (
    Misconfigured,
    NewerStream,
    check_bucket,
    check_distribution,
    check_prior_states,
    check_stream,
    stream_info,
)
from fleetbus.bus.reader_groups import users_of_durables
from fleetbus.process.findings import Finding, as_warning, error, ok, warning
from fleetbus.process.human_time import render_duration
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, PRIOR_STREAM, STREAM

_Check: TypeAlias = Callable[[Mapping[str, Any]], None]

_SHORT: Final = timedelta(hours=1)
_FULL: Final = 0.9
_BEHIND: Final = 10_000
_MAY_BE_FULL: Final = frozenset({DISTRIBUTION_STREAM, PRIOR_STREAM})
"""They keep what fits: nothing waits for what they drop."""


async def check_nats(bus: Bus, *, is_dev: bool = False) -> AsyncIterator[Finding]:
    """Check what a connection to NATS can show; needs the rights of an administrator.

    Args:
        bus: the connection.
        is_dev: on a dev fleet a controller that does not run was only tried, and is no error.

    Raises:
        BusError: JetStream does not answer, or not to this user.
    """
    version = bus.nc.connected_server_version
    yield ok("nats", f"nats-server {version.major}.{version.minor}.{version.patch}")
    events = await stream_info(bus, STREAM)
    bucket = await stream_info(bus, f"KV_{KV_BUCKET}")
    for finding in _stream("stream", STREAM, events, check_stream):
        yield finding
    # Their size and replicas follow the stream of events, so one that was edited alone is wrong.
    for about, name, check in (
        ("prior states", PRIOR_STREAM, check_prior_states),
        ("distribution", DISTRIBUTION_STREAM, check_distribution),
    ):
        like = partial(check, events=events["config"]) if events is not None else None
        for finding in _stream(about, name, await stream_info(bus, name), like):
            yield finding
    for finding in _stream("bucket", f"KV_{KV_BUCKET}", bucket, check_bucket):
        yield finding
    if events is not None and bucket is not None:
        async for finding in _readers(bus, is_dev=is_dev):
            yield finding


def _stream(
    about: str, name: str, info: Mapping[str, Any] | None, check: _Check | None
) -> Iterator[Finding]:
    """The findings about a stream; without a check only whether it exists, and its servers."""
    if info is None:
        advice = "start the projector (`fleetbus-reconciler`), which creates it"
        yield error(about, f"{name} does not exist", advice)
        return
    if check is not None:
        yield _configuration(about, name, check, info)
    yield from _servers(about, info)
    if name not in _MAY_BE_FULL:
        yield _room(about, name, info)


def _configuration(about: str, name: str, check: _Check, info: Mapping[str, Any]) -> Finding:
    try:
        check(info["config"])
    except NewerStream as e:
        return error(about, str(e), "run the newer release, or see docs/operations/upgrade.md")
    except Misconfigured as e:
        advice = "set it back with `nats stream edit`; the projector refuses to start otherwise"
        return error(about, str(e), advice)
    return ok(about, f"{name} is configured correctly")


def _servers(about: str, info: Mapping[str, Any]) -> list[Finding]:
    """The servers of a NATS cluster that hold a copy."""
    cluster: Mapping[str, Any] = info.get("cluster") or {}
    if info["config"].get("num_replicas", 1) > 1 and not cluster.get("leader"):
        advice = "start the servers of the NATS cluster: a majority must run"
        return [error(about, "it has no leader, so nothing can be stored", advice)]
    copies: list[dict[str, Any]] = cluster.get("replicas") or []
    return [
        warning(
            about,
            f"its replica on {copy['name']} is {'offline' if copy.get('offline') else 'behind'}",
            "check that server; if another one fails, the bus stops",
        )
        for copy in copies
        if copy.get("offline") or not copy.get("current")
    ]


def _room(about: str, name: str, info: Mapping[str, Any]) -> Finding:
    config, state = info["config"], info["state"]
    used, most = int(state["bytes"]), int(config["max_bytes"])
    share = f"{used / 2**20:,.0f} of {most / 2**20:,.0f} MiB"
    if used < _FULL * most:
        return ok(about, f"{name} uses {share}")
    if config["discard"] == "new":
        advice = "find the writer with `nats stream subjects`; it refuses writes when full"
        return error(about, f"{name} is nearly full: {share}", advice)
    # At its limit it drops the oldest events, which is as it should be if they are old enough.
    window = datetime.fromisoformat(state["last_ts"]) - datetime.fromisoformat(state["first_ts"])
    if window >= _SHORT:
        return ok(about, f"{name} holds the events of {render_duration(window.total_seconds())}")
    return warning(
        about,
        f"{name} holds the events of only {render_duration(window.total_seconds())}: {share}",
        f"raise FLEETBUS_RECONCILER_STREAM_MAX_BYTES, and edit {STREAM} and {PRIOR_STREAM} with"
        " `nats stream edit` (docs/operations/upgrade.md): after a longer outage, a watcher or"
        " consumer causes a list of everything",
    )


async def _readers(bus: Bus, *, is_dev: bool) -> AsyncIterator[Finding]:
    advice = "start the projector (`fleetbus-reconciler`)"
    info = await consumer_info(bus, PROJECTOR)
    if info is None:
        yield error("projector", f"its durable {PROJECTOR} does not exist", advice)
    else:
        yield await _reader(bus, info, "projector", advice)
    for durable, names in (await users_of_durables(bus)).items():
        if info := await consumer_info(bus, durable):
            advice = (
                f"start a process of {' and '.join(names)}, or `fleetbus queue forget` what is gone"
            )
            what = "controller" if len(names) == 1 else "controllers"
            finding = await _reader(bus, info, f"{what} {', '.join(names)}", advice)
            yield as_warning(finding) if is_dev else finding


async def _reader(bus: Bus, info: Mapping[str, Any], about: str, advice: str) -> Finding:
    durable = str(info["name"])
    waiting = int(info["num_pending"]) + int(info["num_ack_pending"])
    if not await is_read(bus, [durable]):
        return error(
            about, f"no process reads its durable {durable}; {waiting} messages wait", advice
        )
    if waiting > _BEHIND:
        hint = 'see docs/performance.md, "When to scale what"'
        return warning(about, f"{waiting} messages wait in its durable {durable}", hint)
    return ok(about, f"its durable {durable} is read; {waiting} messages wait")
