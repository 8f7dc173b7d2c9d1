"""Reads an uploaded kubeconfig from a multipart form (rule S7)."""

from __future__ import annotations

import asyncio
from email.message import Message
from email.parser import BytesParser
from typing import Final

from fastapi import Request

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import MAX_UPLOAD, KubeConfig, read_upload
from fleetbus_query_api.limits.request_body import read_body
from fleetbus_query_api.responses.problem import BadRequestProblem

FIELD: Final = "kubeconfig"
_FRAME: Final = 8 * 1024
"""For the headers of the parts, and the boundary."""
_HOW: Final = "send a multipart form with the field kubeconfig: curl -F kubeconfig=@FILE"


async def read_kubeconfig(request: Request) -> KubeConfig:
    """Read the kubeconfig of a request: its current context, and nothing else.

    Raises:
        BadRequestProblem: it is missing, not a kubeconfig, or must not be used.
        TooLargeProblem: it is larger than `MAX_UPLOAD`.
    """
    content_type = request.headers.get("content-type", "")
    if not content_type.lower().startswith("multipart/form-data"):
        raise BadRequestProblem(f"the kubeconfig is missing: {_HOW}")
    body = await read_body(request, "the kubeconfig", MAX_UPLOAD, frame=_FRAME)
    # Elsewhere: hostile YAML takes long, and the event loop is everybody's.
    return await asyncio.to_thread(_parse, content_type, body)


def _parse(content_type: str, body: bytes) -> KubeConfig:
    try:
        text = _field(content_type, body).decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequestProblem("the kubeconfig is not text in UTF-8") from None
    try:
        return read_upload(text, FIELD)
    except ConfigError as e:
        raise BadRequestProblem(
            f"{e}; a kubeconfig to join with contains its credentials:"
            " `kubectl config view --minify --flatten --raw`, or a ServiceAccount's token"
        ) from e


def _field(content_type: str, body: bytes) -> bytes:
    head = b"Content-Type: " + content_type.encode("latin-1", "replace") + b"\r\n\r\n"
    form = BytesParser().parsebytes(head + body)
    parts = [part for part in form.walk() if part is not form]
    fields = [part for part in parts if _name_of(part) == FIELD]
    if len(fields) != 1 or len(parts) != 1:
        names = ", ".join(str(_name_of(part))[:40] for part in parts[:4]) or "none"
        raise BadRequestProblem(f"the form needs one field, kubeconfig; it has: {names}. {_HOW}")
    content = fields[0].get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def _name_of(part: Message) -> object:
    return part.get_param("name", header="content-disposition")
