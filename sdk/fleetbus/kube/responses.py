"""Decodes responses and maps failures to errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

import aiohttp
import orjson

from fleetbus import errors
from fleetbus.kube.connection.response import BrokenOff, Response
from fleetbus.kube.trees import read_tree

MIB: Final = 1024 * 1024
RESPONSE_LIMIT: Final = 16 * MIB
"""Size limit of one decompressed response: an object has 1.5 MiB at most, discovery a few."""
_ERROR_LIMIT: Final = 1 * MIB
_LONGEST_ID: Final = 253
_NO_SUCH_PATH: Final = (404, 405)
NOT_MODIFIED: Final = 304


class Answer(NamedTuple):
    """A response that is no error."""

    body: bytes
    media_type: str
    """The whole Content-Type."""
    etag: str
    is_unchanged: bool
    """The document still has the entity tag of the call; the body is empty (304)."""


def parse_object(response: bytes) -> dict[str, Any]:
    """Parse the JSON object of a response.

    Raises:
        Unreachable: it is something else, so it is not from an API server.
    """
    try:
        content: object = read_tree(response)
    except ValueError as e:
        raise unreachable_error(e) from e  # the page of a proxy, or a login form
    if not isinstance(content, dict):
        raise errors.Unreachable(
            0, "Unreachable", "the response of the API server is not a JSON object"
        )
    return cast("dict[str, Any]", content)


def parse_written(response: bytes) -> dict[str, Any]:
    """Parse the object that a write has made.

    Raises:
        Unreachable: it is something else, so it is not from an API server.
    """
    obj = parse_object(response)
    _require_ids(obj)
    return obj


def _require_ids(obj: dict[str, Any]) -> None:
    """Refuse UIDs and versions that no server gives: they are recorded, and records have an end."""
    metadata = obj.get("metadata")
    members = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    for member in ("uid", "resourceVersion"):
        value = members.get(member, "")
        if not isinstance(value, str) or len(value) > _LONGEST_ID:
            raise errors.Unreachable(
                0, "Unreachable", f"metadata.{member} of the response is not one of an API server"
            )


def require_name(obj: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object of a response if it has this name.

    Raises:
        Unreachable: it is another one, so it is not from an API server.
    """
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict) or cast("dict[str, Any]", metadata).get("name") != name:
        raise errors.Unreachable(0, "Unreachable", f"the response is not the object {name!r}")
    _require_ids(obj)
    return obj


def parse_list(response: bytes) -> dict[str, Any]:
    """Parse the list of a response, with its items.

    Raises:
        Unreachable: it is not a list, so it is not from an API server.
    """
    listed = parse_object(response)
    # A custom list may have any kind: as for client-go, it is its items that make it one.
    is_list = "items" in listed and listed.get("kind") and listed.get("apiVersion")
    if listed.get("items") is None:
        listed["items"] = []  # Go writes an empty slice as null
    items = cast("object", listed["items"])
    has_objects = isinstance(items, list) and all(
        isinstance(item, dict) for item in cast("list[object]", items)
    )
    if not is_list or not has_objects or not isinstance(listed.get("metadata"), dict):
        raise errors.Unreachable(0, "Unreachable", "the response of the API server is not a list")
    return listed


def require_deletion(response: bytes, name: str) -> None:
    """Make sure that the response confirms the deletion of an object.

    Raises:
        Unreachable: it is neither the object nor a Status of success.
    """
    answer = parse_object(response)
    if answer.get("kind") != "Status" or answer.get("status") != "Success":
        require_name(answer, name)


def is_object_not_found(error: errors.NotFound, path: str) -> bool:
    """Whether the API server says that exactly the object at this path does not exist.

    A proxy, a gateway or an aggregated API that is down returns 404 too, about something else.
    """
    collection, _, name = path.rpartition("/")
    plural = collection.rpartition("/")[2]
    reported = (error.details.get("name"), error.details.get("kind"))
    return error.reason == "NotFound" and reported == (unquote(name), plural)


def unreachable_error(error: Exception) -> errors.Unreachable:
    """The error for a response that did not come."""
    return errors.Unreachable(
        0, "Unreachable", f"no answer from the API server: {failure_text(error)}"
    )


def failure_text(error: Exception) -> str:
    """Why a request failed, in words; aiohttp's own text has the repr of an SSLContext in it."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {error.host}:{error.port} is refused: " + getattr(
            error.certificate_error, "verify_message", "it is not for this name"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        why, number = cause.strerror or str(cause), cause.errno or 0
        if number > 0 and "Connect call failed" in why:  # asyncio's text, with a tuple in it
            why = os.strerror(number)
        return f"cannot connect to {error.host}:{error.port}: {why}"
    return str(error) or type(error).__name__


def too_large_error(limit: int, subject: str = "the response") -> errors.ServerError:
    """The error for more data than an API server would send (rule S7)."""
    return errors.ServerError(200, "TooLarge", f"{subject} is larger than {limit // MIB} MiB")


async def read_bounded(response: Response, limit: int) -> bytes:
    """Read the body of a response of at most `limit` decompressed bytes.

    Not at once: one megabyte may decompress to a gigabyte (rule S7).

    Raises:
        ServerError: it is larger; the connection is closed.
        BrokenOff: it broke off.
    """
    parts: list[bytes] = []
    size = 0
    async for chunk in response.chunks():
        size += len(chunk)
        if size > limit:
            response.close()
            raise too_large_error(limit)
        parts.append(chunk)
    return b"".join(parts)


async def read_response(response: Response, limit: int) -> bytes:
    """Read the body of a response and release it.

    Raises:
        ServerError: it is larger than the limit.
        Unreachable: the connection broke.
    """
    try:
        return await read_bounded(response, limit)
    except BrokenOff as e:
        raise unreachable_error(e) from e
    finally:
        response.release()


async def read_answer(response: Response, limit: int) -> Answer:
    """Read a response and release it; raises as `read_response`."""
    headers = response.headers
    is_unchanged = response.status == NOT_MODIFIED
    body = await read_response(response, limit)
    return Answer(body, headers.get("Content-Type", ""), headers.get("ETag", ""), is_unchanged)


def _no_such_path_message(response: Response) -> str:
    path = response.path
    is_write = response.method != "GET" and "/namespaces" not in path
    why = ", or a namespace is missing in metadata" if is_write else ""
    return f"the API server does not serve {response.method} {path}: there is no such resource{why}"


async def error_from_response(response: Response) -> errors.KubeError:
    """The error for a response that is not 2xx."""
    try:
        body = await read_bounded(response, _ERROR_LIMIT)
    except BrokenOff as e:
        return unreachable_error(e)
    except errors.ServerError as e:
        body = str(e).encode()
    retry_after = response.headers.get("Retry-After", "")
    seconds = float(retry_after) if retry_after.isdecimal() else None
    try:
        status: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict) or cast("dict[str, Any]", status).get("kind") != "Status":
        # Unknown paths are answered in plain text, and proxies have formats of their own.
        text = body[:200].decode("utf-8", "replace").strip()
        status = {
            "message": _no_such_path_message(response) if response.status in _NO_SUCH_PATH else text
        }
    return errors.from_status(response.status, cast("dict[str, Any]", status), retry_after=seconds)


def check_continuation(query: Mapping[str, str], count: int, token: str) -> None:
    """Refuse a page that is empty although the one before it announced more (rule W8).

    It would end the list, which would then lack everything behind it; only with a selector a page
    may be empty. Also refuse a page that continues where it began: the list would never end (S7).

    Args:
        query: of the request for the page.
        count: how many objects the page has.
        token: the continue token of the page.

    Raises:
        ServerError: the page is one of these.
    """
    is_narrowed = "labelSelector" in query or "fieldSelector" in query
    if "continue" in query and not count and not is_narrowed:
        raise invalid_response(
            "a page of the list is empty, although the one before it announced more"
        )
    if token and token == query.get("continue"):
        raise invalid_response(
            "a page of the list has the continue token with which it was requested"
        )


def invalid_response(message: str) -> errors.ServerError:
    """The error for a response that must not be trusted (rule W8)."""
    return errors.ServerError(200, "Unreadable", message)
