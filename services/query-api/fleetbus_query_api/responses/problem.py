"""Errors as answers: problem details (RFC 9457), other forms below /v1 and /kube.

Below /v1 it is that of multi_resource_operator, below /kube the Status of Kubernetes.

Problem
├── BadRequestProblem         400: the request is invalid
├── UnauthorizedProblem       401: there is no token, or it is not accepted (rule A3)
├── ForbiddenProblem          403: without the rights on the hub, or from another site
├── NotFoundProblem           404: no such resource, cluster or object
├── MethodNotAllowedProblem   405: anything but GET, join and unjoin (rule A7)
├── ConflictProblem           409: the name of a cluster that joins is taken
├── GoneProblem               410: the continue token has expired, or the time left the window
├── TooLargeProblem           413: an uploaded kubeconfig is too large
├── MisdirectedProblem        421: the Host header is not a name of this machine
├── TooManyRequestsProblem    429: a limit of one user was reached
└── UnavailableProblem        503: the store of the snapshot is away or being filled, or NATS is
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, ClassVar, Final, cast

import msgspec
import redis.exceptions
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from fleetbus.errors import ArchiveError, BusError, FleetbusError, StoreError
from fleetbus.kube.selectors import InvalidSelector
from fleetbus.process.durations import InvalidTime
from fleetbus.snapshot import ExpiredToken, InvalidToken
from fleetbus.store.foreign_keys import ForeignKeyError
from fleetbus_proto.errors import InvalidName
from fleetbus_query_api.errors import HistoryError, OutsideWindow
from fleetbus_query_api.responses.render import json_response
from fleetbus_query_api.responses.status import KUBE_PREFIX, render_status

V1_PREFIX: Final = "/v1/"
"""Paths of multi_resource_operator, whose clients expect `{"error": …}`."""


class Problem(FleetbusError):
    """Why a request gets no answer.

    Attributes:
        status: the HTTP status.
        headers: of the answer.
        members: more members of the problem document.
    """

    status: ClassVar[int] = 500
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.members: Mapping[str, Any] = members


class BadRequestProblem(Problem):
    """The request is invalid."""

    status = 400


class UnauthorizedProblem(Problem):
    """There is no bearer token, or the hub does not accept it (rule A3).

    Args:
        detail: what to do.
        is_token_invalid: whether there was one.
    """

    status = 401

    def __init__(self, detail: str, *, is_token_invalid: bool = False) -> None:
        super().__init__(detail)
        error = ', error="invalid_token"' if is_token_invalid else ""
        self.headers = {"WWW-Authenticate": f'Bearer realm="fleetbus"{error}'}


class ForbiddenProblem(Problem):
    """The caller lacks a right on the hub, or is a page of another site (rule A7)."""

    status = 403


class NotFoundProblem(Problem):
    """No such resource, cluster or object, or the user may not read it (rule A2)."""

    status = 404


class MethodNotAllowedProblem(Problem):
    """A method that the path does not have (rule A7).

    Args:
        detail: what to do.
        allow: the method that it has.
    """

    status = 405

    def __init__(self, detail: str, *, allow: str = "GET", **members: Any) -> None:
        super().__init__(detail, **members)
        self.headers = {"Allow": allow}


class ConflictProblem(Problem):
    """The name of a cluster that joins is taken, or it is joining or leaving just now."""

    status = 409


class GoneProblem(Problem):
    """The page that the request continues from is lost, or the time that it is about."""

    status = 410


class TooLargeProblem(Problem):
    """An uploaded kubeconfig is too large (rule S7)."""

    status = 413


class MisdirectedProblem(Problem):
    """The Host header is not a name of this machine."""

    status = 421


class TooManyRequestsProblem(Problem):
    """A limit of one user was reached.

    Args:
        detail: which limit.
        wait_seconds: after which the next request may pass.
    """

    status = 429

    def __init__(self, detail: str, *, wait_seconds: float) -> None:
        super().__init__(detail)
        self.headers = {"Retry-After": str(max(1, math.ceil(wait_seconds)))}


class UnavailableProblem(Problem):
    """The store of the snapshot does not answer or is being filled; or NATS, for the past."""

    status = 503
    headers = MappingProxyType({"Retry-After": "1"})


_MEANINGS: Final[tuple[tuple[tuple[type[Exception], ...], type[Problem]], ...]] = (
    ((ExpiredToken, OutsideWindow), GoneProblem),
    ((InvalidName, InvalidSelector, InvalidToken, InvalidTime, HistoryError), BadRequestProblem),
    ((StoreError, BusError, ArchiveError), UnavailableProblem),
)


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error of the app, also those of the framework, with a problem."""
    for kind in (
        Problem,
        HTTPException,
        RequestValidationError,
        InvalidName,
        InvalidSelector,
        InvalidToken,
        ExpiredToken,
        InvalidTime,
        HistoryError,
        StoreError,
        BusError,
        ArchiveError,
        redis.exceptions.RedisError,
        Exception,
    ):
        app.add_exception_handler(kind, _answer)


def render_problem(path: str, error: Problem) -> Response:
    """Render a problem in the form that clients of the path expect."""
    if path.startswith(KUBE_PREFIX):
        details = error.members.get("details")
        content = render_status(error.status, str(error), error.headers, details)
        return json_response(content, status=error.status, headers=error.headers)
    if path.startswith(V1_PREFIX):
        content = msgspec.json.encode({"error": str(error)})
        return json_response(content, status=error.status, headers=error.headers)
    document = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": str(error),
        **error.members,
    }
    return json_response(
        msgspec.json.encode(document),
        status=error.status,
        headers=error.headers,
        media_type="application/problem+json",
    )


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and request.url.path.startswith(V1_PREFIX):
        return json_response(b'{"message":"Not Found handler"}', status=error.status_code)
    return render_problem(request.url.path, _translate(error))


def _translate(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        # The message is that of multi_resource_operator.
        detail = "unknown path; /openapi.json lists the paths"
        return NotFoundProblem(detail, message="Not Found handler")
    if isinstance(error, RequestValidationError):
        return BadRequestProblem(_first_fault(error))
    if isinstance(error, redis.exceptions.RedisError):
        is_foreign = isinstance(error, ForeignKeyError)
        problem = "has keys of another program; the log names them" if is_foreign else ""
        return UnavailableProblem(f"the snapshot's store {problem or 'does not answer'}")
    for kinds, meaning in _MEANINGS:
        if isinstance(error, kinds):
            return meaning(str(error))
    return Problem("internal error; see the log of the query API")


def _first_fault(error: RequestValidationError) -> str:
    fault = cast("dict[str, Any]", error.errors()[0])
    name = ".".join(str(segment) for segment in fault["loc"][1:])
    if fault["type"] == "extra_forbidden":
        return f"unknown query parameter {name[:80]!r}"
    return f"query parameter {name}: {fault['msg']}"
