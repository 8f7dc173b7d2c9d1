"""Refusals that only a Kubernetes API has, and the words of the others there.

SeveralClustersProblem    409: a typed client asks the fleet for one object, and there are several
NotAcceptableProblem      406: the client accepts no form that there is
UnsupportedBodyProblem    415: a review in another form
InvalidOptionsProblem     422: parameters that contradict each other
FutureVersionProblem      504: a resourceVersion that the snapshot has not reached
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from fleetbus_query_api.answers.problem import (
    BadRequestProblem,
    MethodNotAllowedProblem,
    NotFoundProblem,
    Problem,
)
from fleetbus_query_api.kube.paths import ResourcePath
from fleetbus_query_api.kube.status import WHERE_TO_WRITE

_MAX_NAMED: Final = 5


class SeveralClustersProblem(Problem):
    """A typed client asks the fleet for one object, and several clusters have it.

    It would read a List as an object without any fields.
    """

    status = 409

    def __init__(self, path: ResourcePath, clusters: Sequence[str]) -> None:
        named = ", ".join(clusters[:_MAX_NAMED]) + (", …" if len(clusters) > _MAX_NAMED else "")
        super().__init__(
            f'{path.qualified} "{path.name}" is in {len(clusters)} clusters ({named}): ask one of'
            " them, at /kube/<cluster>",
            details=path.details,
        )


class NotAcceptableProblem(Problem):
    """The client accepts no form that there is."""

    status = 406


class UnsupportedBodyProblem(Problem):
    """A review that is neither JSON nor protobuf."""

    status = 415


class InvalidOptionsProblem(Problem):
    """Parameters that contradict each other.

    Args:
        field: the parameter.
        reason: what is wrong with it.
    """

    status = 422

    def __init__(self, field: str, reason: str) -> None:
        causes = [{"reason": "FieldValueForbidden", "message": f"Forbidden: {reason}"}]
        details = {"group": "meta.k8s.io", "kind": "ListOptions"}
        super().__init__(
            f'ListOptions.meta.k8s.io "" is invalid: {field}: Forbidden: {reason}',
            details={**details, "causes": [{**causes[0], "field": field}]},
        )


class FutureVersionProblem(Problem):
    """A resourceVersion that the snapshot has not reached: clients list again without it."""

    status = 504
    headers = MappingProxyType({"Retry-After": "1"})

    def __init__(self, asked: int, present: int) -> None:
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        super().__init__(
            f"Timeout: Too large resource version: {asked}, current: {present}",
            details={"causes": [cause]},
        )


def no_object(path: ResourcePath) -> NotFoundProblem:
    """One answer for an object that does not exist and one that may not be read (rule A2)."""
    text = f'{path.qualified} "{path.name}" not found'
    return NotFoundProblem(text, details=path.details)


def no_resource(path: ResourcePath, reason: str) -> NotFoundProblem:
    """A list of what is not served, or not to this user."""
    text = f"the server could not find the requested resource: {path.qualified}: {reason}"
    return NotFoundProblem(text, details=path.details)


def no_path() -> NotFoundProblem:
    """A path that names nothing of a Kubernetes API."""
    return NotFoundProblem("the server could not find the requested resource")


_CONNECTING = ("attach", "exec", "log", "portforward", "proxy")


def no_subresource(path: ResourcePath) -> Problem:
    """A subresource: what acts on the cluster is refused, the others do not exist."""
    first = path.subresource.partition("/")[0]
    if first not in _CONNECTING:
        return no_path()
    return MethodNotAllowedProblem(
        f"{path.plural}/{first} is not served here, only on the API server of the cluster itself:"
        f" {WHERE_TO_WRITE}",
        details=path.details,
    )


def bad_parameter(name: str, reason: str) -> BadRequestProblem:
    """A parameter that cannot be read."""
    return BadRequestProblem(f"query parameter {name}: {reason}")
