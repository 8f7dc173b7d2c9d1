"""Reads reviews as clients send them: in JSON, and in protobuf as kubectl does since 1.32.

The numbers are those of Kubernetes' generated.proto files; fields that are not read are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct, field

from fleetbus_query_api.kube.negotiation import JSON, PROTOBUF
from fleetbus_query_api.kube.problems import UnsupportedBodyProblem
from fleetbus_query_api.responses.problem import BadRequestProblem

_MAGIC: Final = b"k8s\x00"
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10


class _Part(Struct, omit_defaults=True, rename="camel"):
    """A part of a review; fields that only later versions have are left out."""


class ResourceAttributes(_Part):
    """A request for objects. The order is that of the numbers in protobuf, from 1."""

    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


class NonResourceAttributes(_Part):
    """A request for a path; the order as above."""

    path: str = ""
    verb: str = ""


class ReviewSpec(_Part):
    """The spec of any review."""

    namespace: str = ""
    resource_attributes: ResourceAttributes | None = None
    non_resource_attributes: NonResourceAttributes | None = None


class _Review(_Part):
    kind: str = ""
    spec: ReviewSpec = field(default_factory=ReviewSpec)


def read_spec(body: bytes, content_type: str, kind: str) -> ReviewSpec:
    """Read the spec of a review.

    Args:
        body: of the request.
        content_type: its header; JSON if it is empty.
        kind: of the review.

    Raises:
        BadRequestProblem: it is malformed, or of another kind.
        UnsupportedBodyProblem: it is neither JSON nor protobuf.
    """
    sent = content_type.partition(";")[0].strip().lower() or JSON
    if sent not in (JSON, PROTOBUF):
        raise UnsupportedBodyProblem(f"the body must be of the media type {JSON} or {PROTOBUF}")
    try:
        review = msgspec.json.decode(body, type=_Review) if sent == JSON else _decode(body, kind)
    except (ValueError, RecursionError) as e:
        raise BadRequestProblem(f"the body is no {kind}: {e}") from None
    if review.kind not in ("", kind):
        raise BadRequestProblem(f"the body is a {review.kind[:80]!r}, not a {kind}")
    return review.spec


def _decode(body: bytes, kind: str) -> _Review:
    """Decode protobuf.

    Raises:
        ValueError: it is malformed.
    """
    if not body.startswith(_MAGIC):
        raise ValueError("it does not begin as protobuf of Kubernetes does")
    meta, raw = _parts(body[len(_MAGIC) :], 2)
    _, sent_kind = _texts(meta, 2)
    _, spec = _parts(raw, 2)
    if kind == "SelfSubjectRulesReview":
        (namespace,) = _texts(spec, 1)
        return _Review(sent_kind, ReviewSpec(namespace))
    resource, path = _parts(spec, 2)
    return _Review(
        sent_kind,
        ReviewSpec(
            resource_attributes=ResourceAttributes(*_texts(resource, 7)) if resource else None,
            non_resource_attributes=NonResourceAttributes(*_texts(path, 2)) if path else None,
        ),
    )


def _texts(message: bytes, most: int) -> Sequence[str]:
    return [text.decode() for text in _parts(message, most)]


def _parts(message: bytes, most: int) -> Sequence[bytes]:
    """The fields 1 to `most` of a message, which are texts or messages; empty if missing."""
    fields = [b""] * most
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, form = key >> 3, key & 7
        if form == _VARINT:
            _, at = _varint(message, at)
            continue
        if form == _BYTES:
            length, at = _varint(message, at)
        else:
            length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(form, len(message))
        if at + length > len(message):
            raise ValueError("a field is cut off")
        if form == _BYTES and 0 < number <= most:
            fields[number - 1] = message[at : at + length]
        at += length
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and the place behind it."""
    value = 0
    for count, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:  # noqa: PLR2004 -- the last byte
            return value, at + count + 1
    raise ValueError("a number is cut off")
