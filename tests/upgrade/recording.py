"""The file with the stored state of a release, and how it gets back into a store and a bus.

`state.jsonl.gz` is gzip of JSON lines, as a capture is: a header, then keys of the store, streams,
their messages, objects of the API servers and frames of agents' calls, then an end mark with the
digest of all lines before it.

Keys are stored by type and content, not as `DUMP` payloads or an RDB: a payload has the version of
the RDB of its server, which older servers and Redis refuse, and it has encodings, which are the
server's business. What our scripts read is type and content. Streams are stored as messages, not as
a folder of nats-server, for the same reason; their sequences are the same after a restore, because
a recorded stream begins with its first message.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

if TYPE_CHECKING:
    from nats.aio.client import Client

RECORDED: Final = Path(__file__).parent / "recorded"
"""A folder for each release."""
STATE: Final = "state.jsonl.gz"
CAPTURE: Final = "fleet.capture.gz"
ARCHIVE: Final = "archive"
_FORMAT: Final = "fleetbus-recorded-state"
_VERSION: Final = 1
_CONDITIONS: Final = ("Nats-Expected-", "Nats-TTL")
"""Headers that a message had when it was published, and that make no sense when it comes again."""


class RecordingError(Exception):
    """A recording cannot be read; the message names the file and says what to do."""


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line."""

    format: str = _FORMAT
    version: int = _VERSION
    release: str
    servers: str
    """The versions of the store and of NATS, for people."""


class StoreKey(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", tag="key"):
    """One key of the store."""

    name: bytes
    type: str
    """As the command TYPE names it."""
    values: list[bytes]
    """The arguments of the command that makes it, behind the key."""


class Stream(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", tag="stream"):
    """One stream, or the bucket; its messages follow."""

    config: dict[str, Any]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", tag="message"):
    """One message of the stream before it."""

    stream: str
    sequence: int
    subject: str
    headers: dict[str, str]
    data: bytes


class Stored(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", tag="object"):
    """One object of an API server."""

    cluster: str
    resource: str
    """Group and plural, like `apps/deployments`."""
    object: dict[str, Any]


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", tag="frame"):
    """One message of a call through an agent, or of a command to a watcher."""

    subject: str
    data: bytes


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", tag="end"):
    """The last line."""

    lines: int
    sha256: str


Line: TypeAlias = StoreKey | Stream | Message | Stored | Frame
_line = msgspec.json.Decoder(Line | End)
_header = msgspec.json.Decoder(Header)


@dataclass(frozen=True)
class State:
    """A recorded state.

    Attributes:
        header: the release that wrote it.
        keys: of the store.
        streams: their configurations, by name.
        messages: of all streams, in their order.
        objects: of the API servers.
        frames: of agents' calls.
    """

    header: Header
    keys: list[StoreKey] = field(default_factory=list[StoreKey])
    streams: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    messages: list[Message] = field(default_factory=list[Message])
    objects: list[Stored] = field(default_factory=list[Stored])
    frames: list[Frame] = field(default_factory=list[Frame])

    def of_stream(self, name: str) -> list[Message]:
        """The messages of one stream."""
        return [message for message in self.messages if message.stream == name]

    def of_resource(self, resource: str, cluster: str = "") -> list[dict[str, Any]]:
        """The objects of a resource, of one cluster or of all."""
        return [
            stored.object
            for stored in self.objects
            if stored.resource == resource and cluster in ("", stored.cluster)
        ]


# --- the file -------------------------------------------------------------------------------------


def write_state(path: Path, header: Header, lines: Iterable[Line]) -> None:
    """Write a recording; the same content gives the same bytes."""
    body = [msgspec.json.encode(each) for each in (header, *lines)]
    digest = hashlib.sha256(b"".join(line + b"\n" for line in body)).hexdigest()
    body.append(msgspec.json.encode(End(lines=len(body), sha256=digest)))
    path.write_bytes(gzip.compress(b"".join(line + b"\n" for line in body), 9, mtime=0))


def read_state(path: Path) -> State:
    """Read a recording, to its end and before anything is made of it.

    Raises:
        RecordingError: it is no recording, is damaged or not whole, or is of a newer form.
    """
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    except (EOFError, OSError, zlib.error) as e:
        raise RecordingError(f"{path} cannot be read ({e}): check it out again") from e
    state = State(_read_header(path, lines[:1]))
    try:
        parsed = [_line.decode(line) for line in lines[1:]]
    except msgspec.DecodeError as e:
        raise RecordingError(f"{path} is damaged ({e}): check it out again") from e
    digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    if not parsed or parsed.pop() != End(lines=len(lines) - 1, sha256=digest):
        raise RecordingError(f"{path} does not end with its digest: check it out again")
    for each in parsed:
        _add(state, each)
    return state


def _read_header(path: Path, lines: Sequence[bytes]) -> Header:
    try:
        header = _header.decode(b"".join(lines))
    except msgspec.DecodeError as e:
        raise RecordingError(f"{path} is not a recorded state") from e
    if header.format != _FORMAT:
        raise RecordingError(f"{path} is not a recorded state")
    if header.version > _VERSION:
        raise RecordingError(
            f"{path} has form {header.version}, and these tests read up to {_VERSION}: run those of"
            f" fleetbus {header.release} or later"
        )
    return header


def _add(state: State, line: Line | End) -> None:
    match line:
        case StoreKey():
            state.keys.append(line)
        case Stream():
            state.streams[str(line.config["name"])] = line.config
        case Message():
            state.messages.append(line)
        case Stored():
            state.objects.append(line)
        case Frame():
            state.frames.append(line)
        case End():
            raise RecordingError("a recording ends twice")


def recordings() -> list[Path]:
    """The folders of all recorded releases, sorted by name."""
    return sorted(path.parent for path in RECORDED.glob(f"*/{STATE}"))


# --- a store --------------------------------------------------------------------------------------

_MAKERS: Final = {"string": "SET", "hash": "HSET", "set": "SADD", "list": "RPUSH", "zset": "ZADD"}


async def read_keys(redis: Any) -> list[StoreKey]:
    """All keys of a store, sorted by name; time limits are left out."""
    names: list[bytes] = sorted([name async for name in redis.scan_iter(count=10_000)])
    return [await _read_key(redis, name) for name in names]


async def _read_key(redis: Any, name: bytes) -> StoreKey:
    kind = (await redis.type(name)).decode()
    if kind not in _READERS:
        raise RecordingError(f"key {name!r} is a {kind}, which nobody has recorded before")
    return StoreKey(name=name, type=kind, values=await _READERS[kind](redis, name))


async def _string(redis: Any, name: bytes) -> list[bytes]:
    return [await redis.get(name)]


async def _hash(redis: Any, name: bytes) -> list[bytes]:
    pairs = sorted((await redis.hgetall(name)).items())
    return [part for pair in pairs for part in pair]


async def _set(redis: Any, name: bytes) -> list[bytes]:
    return sorted(await redis.smembers(name))


async def _list(redis: Any, name: bytes) -> list[bytes]:
    return await redis.lrange(name, 0, -1)


async def _sorted_set(redis: Any, name: bytes) -> list[bytes]:
    scores = await redis.zrange(name, 0, -1, withscores=True)
    return [part for member, score in scores for part in (repr(score).encode(), member)]


async def _stream(redis: Any, name: bytes) -> list[bytes]:
    """Flatten a stream: of each entry its id, how many parts follow, and these."""
    parts: list[bytes] = []
    for entry, fields in await redis.xrange(name):
        flat = [part for pair in fields.items() for part in pair]
        parts += (entry, str(len(flat)).encode(), *flat)
    return parts


_READERS: Final = {
    "string": _string,
    "hash": _hash,
    "set": _set,
    "list": _list,
    "zset": _sorted_set,
    "stream": _stream,
}


async def restore_keys(redis: Any, keys: Iterable[StoreKey]) -> None:
    """Write keys into an empty store."""
    for key in keys:
        if key.type == "stream":
            for arguments in _entries(key.values):
                await redis.execute_command("XADD", key.name, *arguments)
        else:
            await redis.execute_command(_MAKERS[key.type], key.name, *key.values)


def _entries(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    at = 0
    while at < len(values):
        count = int(values[at + 1])
        yield (values[at], *values[at + 2 : at + 2 + count])
        at += 2 + count


# --- a bus ----------------------------------------------------------------------------------------


def read_headers(raw: bytes) -> dict[str, str]:
    """The headers of a stored message."""
    lines = raw.decode().split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: value.strip() for name, _, value in pairs}


async def restore_streams(client: Client, state: State) -> None:
    """Make the streams and the bucket, and publish their messages again."""
    jetstream = client.jetstream()
    for name, config in state.streams.items():
        body = msgspec.json.encode(
            {key: value for key, value in config.items() if key != "metadata"}
        )
        answer = await client.request(f"$JS.API.STREAM.CREATE.{name}", body)
        created = cast("dict[str, Any]", msgspec.json.decode(answer.data))
        if error := created.get("error"):
            raise RecordingError(f"NATS refuses stream {name} of {state.header.release}: {error}")
        for message in state.of_stream(name):
            headers = {
                name: value
                for name, value in message.headers.items()
                if not name.startswith(_CONDITIONS)
            }
            await jetstream.publish(message.subject, message.data, headers=headers or None)
