"""Requests, responses and routes, without any transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import orjson
import yaml

from fleetbus_devfleet.apiserver.errors import ApiError, bad_request, unsupported_media_type

if TYPE_CHECKING:
    from collections.abc import Mapping

JsonObject = dict[str, Any]
JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
TEXT = "text/plain; charset=utf-8"
BODY_LIMIT = 3 * 1024 * 1024
SUBRESOURCES_OF_NAMESPACES = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""

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


def json_response(status: int, document: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(status, orjson.dumps(document), headers=headers or {})


def text_response(status: int, text: str) -> Response:
    """A text/plain answer."""
    return Response(status, text.encode(), content_type=TEXT)


def refusal(error: ApiError) -> Response:
    """The answer to a request that is refused."""
    headers = dict(error.headers)
    content_type = headers.pop("Content-Type", JSON)
    body = orjson.dumps(error.to_status())
    return Response(error.code, body, content_type=content_type, headers=headers)


@dataclass(frozen=True, slots=True)
class Route:
    """What a path below /api or /apis names.

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
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:  # noqa: PLR2004 - /api/VERSION/something
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:  # noqa: PLR2004 - /apis/GROUP/VERSION/something
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    prefixed_watch = rest[0] == "watch" and len(rest) > 1
    if prefixed_watch:
        rest = rest[1:]
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2 and not _is_namespace_subresource(group, rest):  # noqa: PLR2004
        namespace, rest = rest[1], rest[2:]
    plural, name, *sub = [*rest, ""][: max(2, len(rest))]
    return Route(group, version, plural, namespace, name, "/".join(sub), prefixed_watch)


def _is_namespace_subresource(group: str, rest: list[str]) -> bool:
    return group == "" and len(rest) == 3 and rest[2] in SUBRESOURCES_OF_NAMESPACES  # noqa: PLR2004


def integer(query: Mapping[str, str], name: str) -> int | None:
    """An integer parameter; None if absent or empty."""
    text = query.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def decode_body(
    request: Request, kind: str, accepted: tuple[str, ...] = (JSON, YAML)
) -> JsonObject:
    """Parse a JSON or YAML object; a missing Content-Type means JSON."""
    content_type = request.headers.get("content-type", JSON).partition(";")[0].strip() or JSON
    if content_type not in accepted:
        raise unsupported_media_type((*accepted, PROTOBUF) if YAML in accepted else accepted)
    return parse_object(request.body, kind)


def parse_object(body: bytes, kind: str) -> JsonObject:
    """Parse a JSON or YAML mapping; JSON first, because nearly all bodies are JSON."""
    try:
        parsed: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = _parse_yaml(body, kind)
    if not isinstance(parsed, dict):
        raise _unrecognized(body, kind)
    return parsed  # pyright: ignore[reportUnknownVariableType]


def _parse_yaml(body: bytes, kind: str) -> Any:
    if body.lstrip()[:1] in (b"{", b"["):
        raise _unrecognized(body, kind)
    try:
        # Kubernetes reads YAML by way of JSON, which has no dates: keep timestamps as text.
        return yaml.load(body, Loader=_JsonLikeLoader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.YAMLError:
        raise _unrecognized(body, kind) from None


class _JsonLikeLoader(yaml.CSafeLoader):
    """A safe loader that leaves timestamps alone."""


_JsonLikeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _unrecognized(body: bytes, kind: str) -> ApiError:
    text = body.decode(errors="replace")
    if not text.strip():
        why, shown = "unexpected end of JSON input", "<empty>"
    else:
        second = text.lstrip()[1:2]
        why = f"invalid character '{second}' looking for beginning of object key string"
        shown = text
    return bad_request(
        f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
        f"json parse error: {why} ({shown})"
    )
