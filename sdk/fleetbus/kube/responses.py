"""What an API server answered, or that it did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import unquote

import aiohttp
import orjson

from fleetbus import errors
from fleetbus.kube.trees import read_tree

MIB: Final = 1024 * 1024
RESPONSE_LIMIT: Final = 16 * MIB
"""Of one answer, decompressed: an object has 1.5 MiB at most, discovery of a large cluster some."""
_ERROR_LIMIT: Final = 1 * MIB
_NO_SUCH_PATH: Final = (404, 405)


def parse_object(answer: bytes) -> dict[str, Any]:
    """The object that an answer holds.

    Raises:
        Unreachable: it holds none, so no API server spoke.
    """
    try:
        found: object = read_tree(answer)
    except ValueError as e:
        raise unreachable_error(e) from e  # a proxy's page, or a login form: no API server spoke
    if not isinstance(found, dict):
        raise errors.Unreachable(0, "Unreachable", "the API server answered no JSON object")
    return cast("dict[str, Any]", found)


def require_name(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The object of an answer, which is the one of this name.

    Raises:
        Unreachable: it is another one, so no API server spoke.
    """
    metadata = found.get("metadata")
    if not isinstance(metadata, dict) or cast("dict[str, Any]", metadata).get("name") != name:
        raise errors.Unreachable(0, "Unreachable", f"the answer is not the object {name!r}")
    return found


def parse_list(answer: bytes) -> dict[str, Any]:
    """The list that an answer holds, with its items.

    Raises:
        Unreachable: it holds none, so no API server spoke.
    """
    found = parse_object(answer)
    if found.get("items") is None:
        found["items"] = []  # Go writes an empty slice as null
    items = cast("object", found["items"])
    is_list = str(found.get("kind") or "").endswith("List") and found.get("apiVersion")
    has_objects = isinstance(items, list) and all(
        isinstance(item, dict) for item in cast("list[object]", items)
    )
    if not is_list or not has_objects or not isinstance(found.get("metadata"), dict):
        raise errors.Unreachable(0, "Unreachable", "the API server answered no list")
    return found


def require_deletion(answer: bytes, name: str) -> None:
    """Make sure that an API server took the deletion of an object.

    Raises:
        Unreachable: it is neither the object nor a Status of success.
    """
    found = parse_object(answer)
    if found.get("kind") != "Status" or found.get("status") != "Success":
        require_name(found, name)


def is_object_not_found(error: errors.NotFound, path: str) -> bool:
    """Whether an API server says that exactly the object at this path does not exist.

    A proxy, a gateway or an aggregated API that is down answer 404 too, about something else.
    """
    collection, _, name = path.rpartition("/")
    plural = collection.rpartition("/")[2]
    told = (error.details.get("name"), error.details.get("kind"))
    return error.reason == "NotFound" and told == (unquote(name), plural)


def unreachable_error(error: Exception) -> errors.Unreachable:
    """The error for an answer that did not come."""
    text = str(error) or type(error).__name__
    return errors.Unreachable(0, "Unreachable", f"no answer from the API server: {text}")


def too_large_error(limit: int, what: str = "the answer") -> errors.ServerError:
    """The error for what no API server would send (rule S7)."""
    return errors.ServerError(200, "TooLarge", f"{what} is larger than {limit // MIB} MiB")


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of an answer, as long as it has no more than so many bytes when decompressed.

    Not `response.read()`: a megabyte on the wire may be a gigabyte afterwards (rule S7).

    Raises:
        ServerError: it is larger; the connection is closed.
        aiohttp.ClientError, TimeoutError: it broke off.
    """
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > limit:
            response.close()
            raise too_large_error(limit)
        parts.append(chunk)
    return b"".join(parts)


async def read_response(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body of an answer, which is done with then.

    Raises:
        ServerError: it is larger than the limit.
        Unreachable: the connection broke.
    """
    try:
        return await read_bounded(response, limit)
    except (aiohttp.ClientError, TimeoutError) as e:
        raise unreachable_error(e) from e
    finally:
        response.release()


def _no_such_path_message(response: aiohttp.ClientResponse) -> str:
    path = response.url.path
    is_write = response.method != "GET" and "/namespaces" not in path
    why = ", or a namespace is missing in metadata" if is_write else ""
    return f"the API server does not serve {response.method} {path}: there is no such resource{why}"


async def error_from_response(response: aiohttp.ClientResponse) -> errors.KubeError:
    """The error for an answer that is none of 2xx."""
    try:
        body = await read_bounded(response, _ERROR_LIMIT)
    except (aiohttp.ClientError, TimeoutError) as e:
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
        # Unknown paths are answered in plain text, and by a proxy in a form of its own.
        text = body[:200].decode("utf-8", "replace").strip()
        status = {
            "message": _no_such_path_message(response) if response.status in _NO_SUCH_PATH else text
        }
    return errors.from_status(response.status, cast("dict[str, Any]", status), retry_after=seconds)


def check_continuation(query: Mapping[str, str], count: int, token: str) -> None:
    """Doubt a page that has nothing although the one before it said that there is more (W8).

    Believed, it would be the end of a list that lacks everything behind it. Only what a selector
    leaves of a page may be nothing. A page that says to go on where it began would make a list
    without an end (S7).

    Args:
        query: of the request for the page.
        count: how many objects the page has.
        token: where the list goes on, as the page says.

    Raises:
        ServerError: it is so.
    """
    is_narrowed = "labelSelector" in query or "fieldSelector" in query
    if "continue" in query and not count and not is_narrowed:
        raise invalid_response(
            "a page of a list is empty, and the one before it said that there is more"
        )
    if token and token == query.get("continue"):
        raise invalid_response("a page of a list says that the list goes on where the page begins")


def invalid_response(message: str) -> errors.ServerError:
    """The error for an answer that may not be believed (W8)."""
    return errors.ServerError(200, "Unreadable", message)
