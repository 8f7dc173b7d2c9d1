"""Requests to an API server through an agent in its cluster, as frames on NATS.

A frame is one message with a msgpack map. A call is one request: `Open`, perhaps `Body` with the
rest of its body; answered with `Head` and `Body`, or with `Failed`. Each side sends no more bytes
of a body than the other has given `Credit` for. Nothing is stored: these are calls, not events.

The id of a call is `<component>.<process>.<number>`, unique in the fleet. It is the end of the
subject on which the call is answered, so that a component may have the right to its own answers
only. Durations are sent, never times: clocks differ.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec

from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.subjects import is_call_id

CHUNK_BYTES: Final = 64 * 1024
"""The most of a body in one frame."""
WINDOW_BYTES: Final = 1024 * 1024
"""The usual credit of a call."""
MAX_CREDIT_BYTES: Final = 16 * 1024 * 1024
"""The most credit of a call, and the largest body of a request."""
MAX_FRAME_BYTES: Final = 192 * 1024
"""A frame has one chunk, a path, a query and a few headers."""
WORKING_EVERY_MS: Final = 5_000
"""An agent that has nothing else to send about a call says that it works on it, a caller that it
still waits."""
SILENCE_MS: Final = 15_000
"""A side that has received nothing about a call for so long gives it up."""
ANSWER_HEADERS: Final = (
    *("content-type", "content-encoding", "etag", "retry-after"),
    *("warning", "audit-id"),
)
"""The headers of a response that are passed on."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Data = Annotated[bytes, msgspec.Meta(max_length=CHUNK_BYTES)]
_Id = Annotated[str, msgspec.Meta(max_length=97)]
_Text = Annotated[str, msgspec.Meta(max_length=8192)]
_Long = Annotated[str, msgspec.Meta(max_length=64 * 1024)]
_Word = Annotated[str, msgspec.Meta(max_length=1024)]


class AskedBy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Who asks, for the log of the agent; it proves nothing."""

    component: _Word = ""
    """The process, like `distributor`."""
    controller: _Word = ""
    """The controller in it."""
    object: _Word = ""
    """The object that the controller works on, like `hub/team-a/web`."""


class Open(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="open.v1",
):
    """A request for the API server; one agent of the cluster takes it."""

    id: _Id
    method: _Word
    path: _Long
    """Escaped, without the query."""
    query: dict[_Word, _Long] = {}
    """Selectors and continue tokens may be long."""
    accept: _Word = ""
    content_type: _Word = ""
    if_none_match: _Word = ""
    as_user: _Word = ""
    """The user to impersonate; empty for the agent's own."""
    user_agent: _Word = ""
    within: _Count = 0
    """Milliseconds until the caller gives up, at the latest; 0 if only silence ends the call."""
    idle: _Count = 0
    """Milliseconds without data of the API server after which the caller gives up; 0 for none."""
    credit: _Count = WINDOW_BYTES
    """Bytes of the answer's body that the caller takes, before `Credit` gives more."""
    uid: _Word = ""
    """The UID of kube-system of the cluster that is meant; empty if any may answer (rule W13)."""
    asked_by: AskedBy = AskedBy()
    body: _Data | None = None
    """The body, or its beginning; None for a request without one."""
    more: bool = False
    """The rest of the body follows, when the agent gives credit."""


class Body(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="body.v1",
):
    """The next piece of a body, of a request or of an answer."""

    id: _Id
    seq: _Count
    """1, 2, … in each direction; the piece in `Open` or `Head` has 0."""
    data: _Data
    more: bool = False


class Credit(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="credit.v1",
):
    """The sender takes more bytes of the other's body; with 0 bytes: it still waits for them."""

    id: _Id
    bytes: _Count = 0
    instance: _Word = ""
    """The agent that sends it; empty from a caller."""


class Cancel(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="cancel.v1",
):
    """The caller has given up."""

    id: _Id


class Head(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="head.v1",
):
    """The beginning of the API server's answer."""

    id: _Id
    instance: _Word
    """The agent that has the call."""
    status: Annotated[int, msgspec.Meta(ge=100, le=999)]
    headers: dict[_Word, _Text] = {}
    """Names in lower case. The body is as `content-encoding` says: it was not unpacked."""
    data: _Data = b""
    more: bool = False


class Working(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="working.v1",
):
    """The agent has the call, and nothing else to send."""

    id: _Id
    instance: _Word


class Reason(StrEnum):
    """Why an agent has no answer of the API server."""

    DENIED = "Denied"
    """Its policy does not allow the request."""
    ANOTHER_CLUSTER = "AnotherCluster"
    """Its API server is that of another cluster than the caller means."""
    UNREACHABLE = "Unreachable"
    """Its API server does not answer, or its answer broke off."""
    OVERLOADED = "Overloaded"
    """It has too many calls."""
    MALFORMED = "Malformed"
    """The request is none that it could send."""
    DEADLINE = "Deadline"
    """The caller's time is over."""
    VERSION = "Version"
    """It does not know the kind of the frame."""
    STOPPED = "Stopped"
    """It stops, or the request may have waited for too long on its way."""


class Failed(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="failed.v1",
):
    """There is no answer of the API server, or not all of it."""

    id: _Id
    reason: str
    """One of `Reason`, or of a later version."""
    message: _Text = ""
    """For people; without secret values."""
    was_sent: bool = False
    """Whether the API server may have received the request."""


FrameToAgent = Open | Body | Credit | Cancel
FrameToCaller = Head | Body | Credit | Working | Failed
Frame = FrameToAgent | FrameToCaller


class _AnyFrame(msgspec.Struct):
    id: _Id = ""
    type: str = ""


_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
_to_agent = msgspec.msgpack.Decoder(FrameToAgent)
_to_caller = msgspec.msgpack.Decoder(FrameToCaller)
_any = msgspec.msgpack.Decoder(_AnyFrame)


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame; equal frames have equal bytes.

    Raises:
        MalformedMessage: a string has a lone surrogate, which UTF-8 cannot represent.
    """
    try:
        return _encoder.encode(frame)
    except UnicodeEncodeError as e:
        raise MalformedMessage(f"a string of the frame is not valid Unicode: {e}") from e


def decode_to_agent(body: bytes) -> FrameToAgent:
    """Decode a frame for an agent; unknown fields are ignored.

    Raises:
        MalformedMessage: too large, not msgpack, an unknown kind, or a field of the wrong type.
    """
    return _decode(_to_agent, body)


def decode_to_caller(body: bytes) -> FrameToCaller:
    """Decode a frame for a caller; raises as `decode_to_agent`."""
    return _decode(_to_caller, body)


def identify(body: bytes) -> tuple[str, str]:
    """The id and the kind of a frame that cannot be decoded; empty if it has none."""
    try:
        frame = _decode(_any, body)
    except MalformedMessage:
        return "", ""
    return (frame.id if is_call_id(frame.id) else ""), frame.type


def _decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    if len(body) > MAX_FRAME_BYTES:
        raise MalformedMessage(f"a frame of {len(body)} bytes is over {MAX_FRAME_BYTES}")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise MalformedMessage(f"not a frame of this contract: {e}") from e
