"""The headers of a message: CloudEvents in binary mode, trace context, deduplication id.

Values are printable ASCII; everything else, and space, `"` and `%`, is percent-encoded, as the
CloudEvents bindings require, and because NATS clients change or refuse control bytes, outer spaces
and non-ASCII characters in header values (rule B10).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final
from urllib.parse import quote, unquote

from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import FORMAT, EpochEnd, Event, Heartbeat, Message
from fleetbus_proto.resources import CORE
from fleetbus_proto.subjects import Verb

MSG_ID: Final = "Nats-Msg-Id"
FORMAT_HEADER: Final = "fleetbus-format"
CONTENT_TYPE: Final = "application/msgpack"
_SAFE = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_ID_BYTES: Final = 16
_FORMAT_TEXT = str(FORMAT)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


def encode_value(text: str) -> str:
    """Encode a string as printable ASCII without spaces."""
    plain = text.isascii() and text.isprintable()
    if plain and " " not in text and "%" not in text and '"' not in text:
        return text
    return quote(text, safe=_SAFE, errors="surrogatepass")


def decode_value(value: str) -> str:
    """Decode a value of `encode_value`."""
    return unquote(value, errors="surrogatepass")


def message_id(message: Message, key: bytes) -> str:
    """The id by which JetStream drops duplicates: derived from the change, never random (rule B3).

    Watch events have equal ids on both replicas. `listed`, swept deletions and epoch ends carry
    the rank, because a second relist inside the duplicate window must not be dropped.

    Args:
        message: the message to publish.
        key: the secret of its cluster: whoever can predict an id could publish something else under
            it, and the real message would be dropped as a duplicate.
    """
    change = _change_id(message).encode("utf-8", "surrogatepass")
    return blake2b(change, key=key, digest_size=_ID_BYTES).hexdigest()


def _change_id(message: Message) -> str:
    if isinstance(message, Heartbeat):
        return f"{message.cluster}:heartbeat:{message.boot}:{message.observed_at}"
    start = f"{message.cluster}:{message.incarnation.number}:{message.resource_key}"
    rank = f"{message.epoch.resource_version}-{message.epoch.id}"
    if isinstance(message, Event):
        key = f"{start}:{message.uid}:{message.resource_version}:{message.verb.value}"
        ranked = message.verb is Verb.LISTED or message.final_state_unknown
        return f"{key}:{rank}" if ranked else key
    scope = f":{message.scope}" if message.scope else ""
    if isinstance(message, EpochEnd):
        return f"{start}{scope}:epoch-end:{rank}"
    return f"{start}{scope}:audit:{rank}:{message.page}"


def traceparent(msg_id: str) -> str:
    """W3C trace context derived from the id, so that both replicas start the same trace."""
    digest = blake2b(msg_id.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-01"


def build(message: Message, key: bytes) -> dict[str, str]:
    """All headers of a message; see `message_id` for the key."""
    msg_id = message_id(message, key)
    return {
        MSG_ID: msg_id,
        FORMAT_HEADER: _FORMAT_TEXT,
        "content-type": CONTENT_TYPE,
        "ce-specversion": "1.0",
        "ce-id": msg_id,
        "ce-source": f"/clusters/{message.cluster}",
        "ce-type": _ce_type(message),
        "ce-subject": encode_value(_ce_subject(message)),
        "ce-time": message.observed_at,
        "traceparent": traceparent(msg_id),
    }


def check_format(headers: Mapping[str, str] | None) -> None:
    """Reject a message of another format version before its body is read (rule B18).

    Raises:
        MalformedMessage: the format header is missing or has an unknown version.
    """
    version = (headers or {}).get(FORMAT_HEADER)
    if version == _FORMAT_TEXT:
        return
    problem = f"format {version!r:.40} is not {_FORMAT_TEXT!r}"
    if _NUMBER.fullmatch(version or "") and int(version or 0) > FORMAT:
        problem += ": a newer release has published it, and readers are upgraded before publishers"
    raise MalformedMessage(problem)


def _ce_type(message: Message) -> str:
    if isinstance(message, Event):
        return f"dev.fleetbus.object.{message.verb.value}"
    if isinstance(message, Heartbeat):
        return "dev.fleetbus.watcher.heartbeat"
    return "dev.fleetbus.epoch.end" if isinstance(message, EpochEnd) else "dev.fleetbus.audit.page"


def _ce_subject(message: Message) -> str:
    if isinstance(message, Heartbeat):
        return message.replica
    group = "" if message.group == CORE else f"{message.group}/"
    start = f"{group}{message.version}/{message.resource}"
    if not isinstance(message, Event):
        return start
    return "/".join([segment for segment in (start, message.namespace, message.name) if segment])
