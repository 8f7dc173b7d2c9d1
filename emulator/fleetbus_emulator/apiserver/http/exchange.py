"""Requests, responses and routes, without any transport."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.encoding import go_syntax, protobuf
from fleetbus_emulator.apiserver.errors import ApiError, bad_request, unsupported_media_type
from fleetbus_emulator.apiserver.json_tree import as_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

JsonObject = dict[str, Any]
JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
TEXT = "text/plain; charset=utf-8"
BODY_LIMIT = 3 * 1024 * 1024
SHOWN_OF_BODY = 30
TYPE_META = (
    r'struct { APIVersion string "json:\"apiVersion,omitempty\""; '
    r'Kind string "json:\"kind,omitempty\"" }'
)
_INTEGER = re.compile(r"[+-]?[0-9]+")
LONGEST_INTEGER = 20  # characters of 64 bits with a sign
MOST_OF_WARNINGS, LONGEST_WARNING = 4096, 256  # bytes of all, and of each if all are too many
SUBRESOURCES_OF_NAMESPACES = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request; header names are in lower case.

    Attributes:
        repeated: All values of the headers that came more than once.
        certificate: What the client showed in the TLS handshake, in DER form; empty for nothing.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    repeated: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    certificate: bytes = b""

    def every(self, header: str) -> tuple[str, ...]:
        """All values of a header that may come more than once."""
        value = self.headers.get(header)
        return self.repeated.get(header) or (() if value is None else (value,))

    @property
    def user_agent(self) -> str:
        """The User-Agent header."""
        return self.headers.get("user-agent", "")

    def flag(self, name: str) -> bool:
        """A boolean parameter: absent, `0` and `false` are false, all else is true."""
        value = self.query.get(name)
        return value is not None and value.lower() not in ("0", "false")


@dataclass(slots=True)
class Response:
    """An HTTP answer; `delay` asks the transport to let the client wait for it."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict[str, str])
    delay: timedelta = timedelta(0)

    def warn(self, warnings: Sequence[str]) -> None:
        """Send warnings along, each once and no more than clients take in a header."""
        if warnings:
            quoted = (orjson.dumps(warning).decode() for warning in _bounded(warnings))
            self.headers["Warning"] = ", ".join(f"299 - {text}" for text in quoted)


def _bounded(warnings: Sequence[str]) -> Iterator[str]:
    """Too many are cut off, each and at the end, as Kubernetes does."""
    distinct = dict.fromkeys(warnings)
    if sum(len(text.encode()) for text in distinct) <= MOST_OF_WARNINGS:
        yield from distinct
        return
    written = 0
    for text in distinct:
        if written >= MOST_OF_WARNINGS:
            return
        short = text.encode()[:LONGEST_WARNING].decode(errors="ignore")
        written += len(short.encode())
        yield short


def json_response(status: int, document: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(status, orjson.dumps(document), headers=headers or {})


def text_response(status: int, text: str) -> Response:
    """An answer as text/plain."""
    return Response(status, text.encode(), content_type=TEXT)


def refusal(error: ApiError) -> Response:
    """The answer to a request that is refused."""
    headers = dict(error.headers)
    content_type = headers.pop("Content-Type", JSON)
    body = orjson.dumps(error.to_status())
    return Response(error.code, body, content_type=content_type, headers=headers)


@dataclass(frozen=True, slots=True)
class Route:
    """The resource that a path below /api or /apis names.

    Attributes:
        prefixed_watch: The legacy form .../watch/... of the path.
    """

    group: str
    version: str
    plural: str
    namespace: str | None = None
    name: str = ""
    subresource: str = ""
    prefixed_watch: bool = False


def parse_route(path: str) -> Route | None:
    """Read a resource path; None if it is none (discovery, health, nonsense)."""
    parts = [segment for segment in path.split("/") if segment]
    if parts[:1] == ["api"] and len(parts) > 2:  # noqa: PLR2004 - /api/VERSION/something
        group, version, segments = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:  # noqa: PLR2004 - /apis/GROUP/VERSION/something
        group, version, segments = parts[1], parts[2], parts[3:]
    else:
        return None
    prefixed_watch = segments[0] == "watch" and len(segments) > 1
    if prefixed_watch:
        segments = segments[1:]
    namespace = None
    is_subresource = _is_namespace_subresource(group, segments)
    if segments[0] == "namespaces" and len(segments) > 2 and not is_subresource:  # noqa: PLR2004
        namespace, segments = segments[1], segments[2:]
    plural, name, *sub = [*segments, ""][: max(2, len(segments))]
    return Route(group, version, plural, namespace, name, "/".join(sub), prefixed_watch)


def _is_namespace_subresource(group: str, segments: list[str]) -> bool:
    return group == "" and len(segments) == 3 and segments[2] in SUBRESOURCES_OF_NAMESPACES  # noqa: PLR2004


def integer(query: Mapping[str, str], name: str) -> int | None:
    """An integer parameter; None if absent or empty."""
    text = query.get(name)
    if not text:
        return None
    if not _INTEGER.fullmatch(text):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if len(text) > LONGEST_INTEGER or not -(1 << 63) <= int(text) < 1 << 63:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return int(text)


def decode_body(
    request: Request, kind: str, accepted: tuple[str, ...] = (JSON, YAML)
) -> JsonObject:
    """Parse a JSON, YAML or protobuf object; a missing Content-Type means JSON."""
    content_type = request.headers.get("content-type", JSON).partition(";")[0].strip() or JSON
    if content_type == PROTOBUF and YAML in accepted:
        return protobuf.decode(request.body)
    if content_type not in accepted:
        raise unsupported_media_type((*accepted, PROTOBUF) if YAML in accepted else accepted)
    body = request.body
    try:
        parsed = go_syntax.parse_yaml(body) if content_type == YAML else go_syntax.parse_json(body)
    except go_syntax.Malformed as problem:
        why = str(problem)
        if content_type == JSON:
            why = f"couldn't get version/kind; json parse error: {why}"
        raise _unrecognized(body, kind, why) from None
    return _typed(parsed, body, kind)


def _typed(parsed: Any, body: bytes, kind: str) -> JsonObject:
    """The document, if its apiVersion and kind can be read."""
    if parsed is None:
        return {}
    document = as_object(parsed)
    if document is None:
        type_name = go_syntax.type_name(parsed)
        why = f"json: cannot unmarshal {type_name} into Go value of type {TYPE_META}"
        raise _unrecognized(body, kind, f"couldn't get version/kind; json parse error: {why}")
    for name in ("apiVersion", "kind"):
        if not isinstance(document.get(name, ""), str | None):
            type_name = go_syntax.type_name(document[name])
            why = f"json: cannot unmarshal {type_name} into Go struct field .{name} of type string"
            raise _unrecognized(body, kind, f"couldn't get version/kind; json parse error: {why}")
    return document


def parse_merge(body: bytes) -> JsonObject:
    """Parse a merge patch or a strategic merge patch."""
    try:
        parsed = go_syntax.parse_json(body)
    except go_syntax.Malformed as problem:
        raise bad_request(f"error decoding patch: {problem}") from None
    return _mapping(parsed, "error decoding patch: json")


def parse_apply(body: bytes) -> JsonObject:
    """Parse an applied configuration: YAML, and nearly always JSON, which is quicker to read."""
    try:
        parsed = _parsed_apply(body)
    except go_syntax.Malformed as problem:
        why = f"error decoding YAML: error converting YAML to JSON: {problem}"
        raise bad_request(why) from None
    place = "error decoding YAML: error unmarshaling JSON: while decoding JSON: json"
    return _mapping(parsed, place)


def _parsed_apply(body: bytes) -> Any:
    try:
        parsed: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return go_syntax.parse_yaml(body)
    go_syntax.check_depth(body, parsed)
    return parsed


def _mapping(parsed: Any, place: str) -> JsonObject:
    if parsed is None:
        return {}
    document = as_object(parsed)
    if document is None:
        raise bad_request(
            f"{place}: cannot unmarshal {go_syntax.type_name(parsed)} into Go value of type "
            "map[string]interface {}"
        )
    return document


def _unrecognized(body: bytes, kind: str, why: str) -> ApiError:
    return bad_request(
        f"the object provided is unrecognized (must be of type {kind}): {why} ({summary(body)})"
    )


def summary(body: bytes) -> str:
    """The beginning of a body as messages show it: what is no JSON object in hexadecimal."""
    if not body:
        return "<empty>"
    beginning = body[:SHOWN_OF_BODY]
    text = beginning.decode(errors="replace") if body[:1] == b"{" else beginning.hex()
    return f"{text} ..." if len(body) > SHOWN_OF_BODY else text
