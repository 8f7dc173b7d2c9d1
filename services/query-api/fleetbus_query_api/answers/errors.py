"""Every error that a caller is told, with its HTTP status.

ApiError
├── BadRequest         400: the question cannot be read
├── NotFound           404: no such resource, cluster or object
├── MethodNotAllowed   405: anything but GET (rule A7)
├── Gone               410: the continue token is of a store that was lost since
├── Misdirected        421: asked under a name that is not ours
├── TooManyRequests    429: one user asks too much at a time
└── Unavailable        503: the snapshot's store does not answer, or is being filled
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from fleetbus.errors import FleetbusError


class ApiError(FleetbusError):
    """A question that gets no answer; the message says why.

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


class BadRequest(ApiError):
    """The question cannot be read."""

    status = 400


class NotFound(ApiError):
    """No such resource, cluster or object."""

    status = 404


class MethodNotAllowed(ApiError):
    """Anything but GET (rule A7)."""

    status = 405
    headers = MappingProxyType({"Allow": "GET"})


class Gone(ApiError):
    """What the question starts from is lost; ask from the beginning."""

    status = 410


class Misdirected(ApiError):
    """Asked under a name that is not ours."""

    status = 421


class TooManyRequests(ApiError):
    """One user asks too much at a time.

    Args:
        detail: which limit was reached.
        wait_seconds: after that the next request may pass.
    """

    status = 429

    def __init__(self, detail: str, *, wait_seconds: float) -> None:
        super().__init__(detail)
        self.headers = {"Retry-After": str(max(1, math.ceil(wait_seconds)))}


class Unavailable(ApiError):
    """The snapshot's store does not answer, or is being filled."""

    status = 503
    headers = MappingProxyType({"Retry-After": "1"})
