"""What an API server answered, or that it did not."""

from __future__ import annotations

from typing import Any, Final, cast

import aiohttp
import orjson

from fleetbus import errors
from fleetbus.kube.trees import read_tree

_NO_SUCH_PATH: Final = (404, 405)


def object_of(answer: bytes) -> dict[str, Any]:
    """The object that an answer holds.

    Raises:
        Unreachable: it holds none, so no API server spoke.
    """
    try:
        found: object = read_tree(answer)
    except ValueError as e:
        raise unreachable(e) from e  # a proxy's page, or a login form: no API server spoke
    if not isinstance(found, dict):
        raise errors.Unreachable(0, "Unreachable", "the API server answered no JSON object")
    return cast("dict[str, Any]", found)


def unreachable(error: Exception) -> errors.Unreachable:
    """The error for an answer that did not come."""
    text = str(error) or type(error).__name__
    return errors.Unreachable(0, "Unreachable", f"no answer from the API server: {text}")


async def read_answer(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer, which is done with then.

    Raises:
        Unreachable: the connection broke.
    """
    try:
        return await response.read()
    except (aiohttp.ClientError, TimeoutError) as e:
        raise unreachable(e) from e
    finally:
        response.release()


def _said_of_no_path(response: aiohttp.ClientResponse) -> str:
    path = response.url.path
    is_write = response.method != "GET" and "/namespaces" not in path
    why = ", or a namespace is missing in metadata" if is_write else ""
    return f"the API server does not serve {response.method} {path}: there is no such resource{why}"


async def error_of(response: aiohttp.ClientResponse) -> errors.KubeError:
    """The error for an answer that is none of 2xx."""
    try:
        body = await response.read()
    except (aiohttp.ClientError, TimeoutError) as e:
        return unreachable(e)
    retry_after = response.headers.get("Retry-After", "")
    seconds = float(retry_after) if retry_after.isdecimal() else None
    try:
        status: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict):
        # Unknown paths are answered in plain text, not as a Status.
        text = body[:200].decode("utf-8", "replace").strip()
        status = {
            "message": _said_of_no_path(response) if response.status in _NO_SUCH_PATH else text
        }
    return errors.from_status(response.status, cast("dict[str, Any]", status), retry_after=seconds)
