"""The JetStream API; the stream and the bucket, which only their owner creates (rule B12).

At each start their configuration is compared with the expected one, and never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import orjson
import structlog

from fleetbus.bus.connection import Bus, NoStream
from fleetbus.errors import BusError
from fleetbus.process.stored_format import METADATA, why_newer
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import (
    DISTRIBUTION_STREAM,
    DISTRIBUTION_SUBJECTS,
    PRIOR_ALL,
    PRIOR_STREAM,
    STREAM,
    STREAM_SUBJECTS,
)

log = structlog.get_logger()

API_LEVEL_FLOOR: Final = 2
_NO_STREAM: Final = 10059
_NO_CLUSTER: Final = 10074
"""A server that is not part of a cluster is asked for more than one replica."""
_OWNERSHIP_DOC: Final = "nothing is changed at start: adapt the setting, or edit it with `nats`"
_SECOND_NS: Final = 1_000_000_000
_DISTRIBUTION_AGE: Final = timedelta(days=7)
"""A vote that is older still counts if the rollout has read it."""
_DISTRIBUTION_BYTES: Final = 128 * 1024**2
_MOST_DISTRIBUTION_BYTES: Final = 64 * 1024
"""Voters are programs of others."""
_PRIOR_SHARE: Final = 4
"""The states that changes replace may take a fourth of what the events may take: one is stored for
an object that had not changed for an hour, so there are far fewer of them."""
_PRIOR_PER_OBJECT: Final = 24
_MOST_VALUE_BYTES: Final = 512 * 1024
"""The largest value in the bucket, with its headers. The longest that we write lists the types
that CRDs define, for 4,000 of them; without a limit any watcher could write 64 MiB."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The limits of the stream and the bucket that an operator may set."""

    max_bytes: int = 2 * 1024**3
    max_age: timedelta = timedelta(hours=24)
    replicas: int = 1
    """On how many servers of a NATS cluster each is stored; durables follow the stream."""
    bucket_bytes: int = 512 * 1024**2


async def ensure_all(bus: Bus, limits: StreamLimits | None = None) -> dict[str, Any]:
    """Create every stream and the bucket, or check them; return the info of the bucket (rule B12).

    Raises:
        Misconfigured, BusError: as for `ensure_stream`.
    """
    for ensure in (ensure_stream, ensure_distribution, ensure_prior_states):
        await ensure(bus, limits)
    return await ensure_bucket(bus, limits)


async def ensure_stream(bus: Bus, limits: StreamLimits | None = None) -> dict[str, Any]:
    """Create the stream of events, or check its configuration; return its info (rule B12).

    Raises:
        Misconfigured: it exists with another configuration, and nothing is changed; or the server
            cannot store as many replicas.
        BusError: it may not exist yet; to be repeated.
    """
    # Optional: an older stream without it works too (`fleetbus.bus.batch`).
    return await _ensure(bus, _stream_config(limits or StreamLimits()), allow_atomic=True)


async def ensure_bucket(bus: Bus, limits: StreamLimits | None = None) -> dict[str, Any]:
    """Create the key-value bucket, or check its configuration (rule B12).

    Raises:
        Misconfigured, BusError: as for `ensure_stream`.
    """
    return await _ensure(bus, _bucket_config(limits or StreamLimits()))


async def ensure_distribution(bus: Bus, limits: StreamLimits | None = None) -> dict[str, Any]:
    """Create the stream of distribution events and votes, or check it (rule B12).

    Raises:
        Misconfigured, BusError: as for `ensure_stream`.
    """
    return await _ensure(bus, _distribution_config(limits or StreamLimits()))


async def ensure_prior_states(bus: Bus, limits: StreamLimits | None = None) -> dict[str, Any]:
    """Create the stream of replaced states, or check it (rule B12).

    Raises:
        Misconfigured, BusError: as for `ensure_stream`.
    """
    return await _ensure(bus, _prior_config(limits or StreamLimits()))


def check_stream(config: Mapping[str, Any]) -> None:
    """Check the configuration of the stream, apart from the limits that an operator sets.

    Raises:
        Misconfigured: a field differs.
    """
    _check_configured(_stream_config(_limits_of(config)), config)


def check_bucket(config: Mapping[str, Any]) -> None:
    """Check the configuration of the bucket, apart from the limits that an operator sets.

    Raises:
        Misconfigured: a field differs.
    """
    _check_configured(_bucket_config(_limits_of(config)), config)


def check_prior_states(config: Mapping[str, Any], events: Mapping[str, Any]) -> None:
    """Check the stream of replaced states, whose limits follow those of the stream of events.

    Args:
        config: of this stream.
        events: the configuration of the stream of events.

    Raises:
        Misconfigured: a field differs.
    """
    _check_configured(_prior_config(_limits_of(events)), config)


def check_distribution(config: Mapping[str, Any], events: Mapping[str, Any]) -> None:
    """Check the stream of distribution events and votes, as `check_prior_states` does.

    Raises:
        Misconfigured: a field differs.
    """
    _check_configured(_distribution_config(_limits_of(events)), config)


async def stream_info(bus: Bus, name: str = STREAM) -> dict[str, Any] | None:
    """The server's description of a stream; None if there is none."""
    try:
        return await call_jetstream(bus, f"STREAM.INFO.{name}")
    except ApiError as e:
        if e.code == _NO_STREAM:
            return None
        raise


class Misconfigured(BusError):
    """A stream, bucket or server is not as it must be; only a person can change that (rule B12)."""


class NewerStream(Misconfigured):
    """A newer release stores a format of its own in a stream or the bucket."""


class ApiError(BusError):
    """JetStream returned an error; `code` is its `err_code`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _stream_config(limits: StreamLimits) -> dict[str, Any]:
    return {
        "name": STREAM,
        "subjects": list(STREAM_SUBJECTS),
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": round(limits.max_age.total_seconds() * _SECOND_NS),
        "max_bytes": limits.max_bytes,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
        "duplicate_window": 120 * _SECOND_NS,
        "num_replicas": limits.replicas,
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
    }


def _distribution_config(limits: StreamLimits) -> dict[str, Any]:
    return {
        "name": DISTRIBUTION_STREAM,
        "subjects": list(DISTRIBUTION_SUBJECTS),
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": round(_DISTRIBUTION_AGE.total_seconds() * _SECOND_NS),
        "max_bytes": _DISTRIBUTION_BYTES,
        "max_msg_size": _MOST_DISTRIBUTION_BYTES,
        "max_msgs": -1,
        "max_consumers": -1,
        "duplicate_window": 120 * _SECOND_NS,
        "num_replicas": limits.replicas,
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,  # a vote is read by its subject
    }


def _prior_config(limits: StreamLimits) -> dict[str, Any]:
    return {
        "name": PRIOR_STREAM,
        "subjects": [PRIOR_ALL],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_age": round(limits.max_age.total_seconds() * _SECOND_NS),
        "max_bytes": limits.max_bytes // _PRIOR_SHARE,
        "max_msgs": -1,
        "max_msgs_per_subject": _PRIOR_PER_OBJECT,
        "max_consumers": -1,
        "duplicate_window": 120 * _SECOND_NS,
        "num_replicas": limits.replicas,
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,  # it is read by subjects only
    }


def _bucket_config(limits: StreamLimits) -> dict[str, Any]:
    return {
        "name": f"KV_{KV_BUCKET}",
        "subjects": [f"$KV.{KV_BUCKET}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_age": 0,
        "max_msgs": -1,
        "max_msgs_per_subject": 1,
        "max_consumers": -1,
        "duplicate_window": 120 * _SECOND_NS,
        "num_replicas": limits.replicas,
        "deny_delete": True,
        "allow_direct": True,  # without it a direct read fails with "no responders"
        # A header `Nats-Rollup: all` would let any watcher empty the bucket of the fleet (S3).
        "allow_rollup_hdrs": False,
        "allow_msg_ttl": True,
        # A watcher may write anything below its cluster, and the stream is on the same disk.
        "max_bytes": limits.bucket_bytes,
        "max_msg_size": _MOST_VALUE_BYTES,
    }


def _limits_of(config: Mapping[str, Any]) -> StreamLimits:
    most = int(config.get("max_bytes", -1))
    return StreamLimits(
        max_bytes=most,
        max_age=timedelta(seconds=int(config.get("max_age", 0)) / _SECOND_NS),
        replicas=int(config.get("num_replicas", 1)),
        bucket_bytes=most,
    )


async def _ensure(bus: Bus, settings: Mapping[str, Any], **at_creation: bool) -> dict[str, Any]:
    await check_jetstream(bus)
    name = str(settings["name"])
    info = await stream_info(bus, name)
    if info is None:
        info = await _create(bus, {**settings, **at_creation})
        log.info("stream_created", stream=name)
    _check_configured(settings, cast("dict[str, Any]", info["config"]))
    return info


def _check_configured(settings: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Compare a stream with the expected one, whose format comes first: it explains the rest."""
    name = settings["name"]
    metadata: Mapping[str, str] = config.get("metadata") or {}
    back = (
        "to go on with this one, stop every process, delete that stream, and start this release,"
        " which makes it again and asks the clusters for what it needs"
    )
    if newer := why_newer(f"stream {name}", metadata.get(METADATA, ""), back=back):
        raise NewerStream(newer)
    check_echo(f"stream {name}", settings, config)


async def _create(bus: Bus, settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return await call_jetstream(bus, f"STREAM.CREATE.{settings['name']}", settings)
    except ApiError as e:
        if e.code != _NO_CLUSTER:
            raise
        raise Misconfigured(
            f"stream {settings['name']}: {settings['num_replicas']} replicas need a cluster of"
            " nats-servers, and this server is in none: set FLEETBUS_RECONCILER_BUS_REPLICAS=1,"
            " or run NATS as a cluster"
        ) from e


def check_echo(subject: str, settings: Mapping[str, Any], echoed: Mapping[str, Any]) -> None:
    """Compare every requested field with the server's configuration.

    An old server ignores unknown fields, and an existing stream may be configured differently.

    Raises:
        Misconfigured: one differs; both values are in the message.
    """
    for field, value in settings.items():
        # The server omits values that are false, zero or empty.
        actual = echoed.get(field, type(value)())
        if actual != value:
            raise Misconfigured(
                f"{subject}: field {field} is {actual!r}, and {value!r} is needed; {_OWNERSHIP_DOC}"
            )


async def call_jetstream(
    bus: Bus, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Call one method of the JetStream API, like `STREAM.INFO.<name>`.

    Raises:
        ApiError: the server refused.
    """
    payload = orjson.dumps(body) if body is not None else b""
    message = await bus.request(f"$JS.API.{path}", payload)
    answer = cast("dict[str, Any]", orjson.loads(message.data))
    if error := answer.get("error"):
        raise ApiError(
            f"JetStream refused {path}: {error.get('description', error)}",
            int(error.get("err_code", 0)),
        )
    return answer


async def check_jetstream(bus: Bus) -> None:
    """Check that JetStream is enabled and recent enough; needs the right to `$JS.API.INFO`.

    Raises:
        Misconfigured: it is not.
        BusError: nothing is known.
    """
    try:
        answer = await call_jetstream(bus, "INFO")
    except NoStream as e:
        raise BusError("JetStream is not enabled on this NATS server") from e
    level = int(answer.get("api", {}).get("level", 0))
    if level < API_LEVEL_FLOOR:
        raise Misconfigured(f"the JetStream API level is {level}, {API_LEVEL_FLOOR} is needed")
