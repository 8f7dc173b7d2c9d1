"""Errors as answers: problem details (RFC 9457), and multi_resource_operator's form below /v1."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, cast

import msgspec
import redis.exceptions
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fleetbus.errors import StoreError
from fleetbus.kube.selectors import InvalidSelector
from fleetbus.snapshot import ExpiredToken, InvalidToken
from fleetbus.store.foreign_keys import ForeignKeyError
from fleetbus_proto.errors import InvalidName
from fleetbus_query_api.answers.errors import ApiError, BadRequest, Gone, NotFound, Unavailable
from fleetbus_query_api.answers.render import json_response

SEED_PREFIX: Final = "/v1/"
"""Paths of multi_resource_operator, whose clients know `{"error": …}`."""

_MEANINGS: Final[tuple[tuple[tuple[type[Exception], ...], type[ApiError]], ...]] = (
    ((ExpiredToken,), Gone),
    ((InvalidName, InvalidSelector, InvalidToken), BadRequest),
    ((StoreError,), Unavailable),
)


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error of the app, also those of the framework, as a problem."""
    for kind in (
        ApiError,
        HTTPException,
        RequestValidationError,
        InvalidName,
        InvalidSelector,
        InvalidToken,
        ExpiredToken,
        StoreError,
        redis.exceptions.RedisError,
        Exception,
    ):
        app.add_exception_handler(kind, _answer)


def render_problem(path: str, error: ApiError) -> Response:
    """The answer for an error, in the form that callers of this path know."""
    if path.startswith(SEED_PREFIX):
        content: dict[str, Any] = {"error": str(error)}
        return json_response(
            msgspec.json.encode(content), status=error.status, headers=error.headers
        )
    content = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": str(error),
        **error.members,
    }
    return json_response(
        msgspec.json.encode(content),
        status=error.status,
        headers=error.headers,
        media_type="application/problem+json",
    )


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and request.url.path.startswith(SEED_PREFIX):
        return json_response(b'{"message":"Not Found handler"}', status=error.status_code)
    return render_problem(request.url.path, _translate(error))


def _translate(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return NotFound("there is nothing at this path; /openapi.json tells what there is")
    if isinstance(error, RequestValidationError):
        return BadRequest(_first_fault(error))
    if isinstance(error, redis.exceptions.RedisError):
        is_foreign_key = isinstance(error, ForeignKeyError)
        what = "holds what another program wrote: our log says where" if is_foreign_key else ""
        return Unavailable(f"the snapshot's store {what or 'does not answer'}")
    for kinds, meaning in _MEANINGS:
        if isinstance(error, kinds):
            return meaning(str(error))
    return ApiError("the question met a fault of ours; the log of the query API has it")


def _first_fault(error: RequestValidationError) -> str:
    fault = cast("dict[str, Any]", error.errors()[0])
    name = ".".join(str(part) for part in fault["loc"][1:])
    if fault["type"] == "extra_forbidden":
        return f"unknown query parameter {name[:80]!r}"
    return f"query parameter {name}: {fault['msg']}"
