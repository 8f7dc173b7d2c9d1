"""Refusals that only a Kubernetes API has, and the words of the others there.

SeveralClustersProblem    409: a client asks the fleet for one object, and there are several
OneClusterProblem         409: a command waits, and any cluster of the fleet would satisfy it
UpgradeProblem            400: a client asks for another protocol, such as WebSocket
NotAcceptableProblem      406: the client accepts no form that there is
UnsupportedBodyProblem    415: a review in another form
InvalidOptionsProblem     422: parameters that contradict each other
FutureVersionProblem      504: a resourceVersion that the snapshot has not reached
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from fleetbus_query_api.requests.kube_paths import ResourcePath
from fleetbus_query_api.responses.problem import (
    BadRequestProblem,
    MethodNotAllowedProblem,
    NotFoundProblem,
    Problem,
)
from fleetbus_query_api.responses.status import WHERE_TO_WRITE

_MAX_NAMED: Final = 5


class SeveralClustersProblem(Problem):
    """A client asks the fleet for what it takes for one object, and several clusters have it.

    A typed one would read a List as an object without any fields; one that follows an object by its
    name would take those of all clusters for states of one.
    """

    status = 409

    def __init__(self, path: ResourcePath, name: str, clusters: Sequence[str]) -> None:
        named = ", ".join(clusters[:_MAX_NAMED]) + (", …" if len(clusters) > _MAX_NAMED else "")
        super().__init__(
            f'{path.qualified} "{name}" is in {len(clusters)} clusters ({named}): ask one of'
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

    def __init__(self, version: int, present: int) -> None:
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        super().__init__(
            f"Timeout: Too large resource version: {version}, current: {present}",
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


_OF_THE_SERVER: Final = {
    "healthz": "GET /fleet/v1/clusters says which clusters are reachable",
    "livez": "GET /fleet/v1/clusters says which clusters are reachable",
    "readyz": "GET /fleet/v1/clusters says which clusters are reachable",
    "logs": "they are files of the control plane",
    "metrics": "they are measured in the API server of the cluster",
}
"""Paths of an API server that are about itself, and why they are not served."""


def no_path(path: str) -> NotFoundProblem:
    """A path that names nothing of a Kubernetes API, or nothing that is served here."""
    why = _OF_THE_SERVER.get(path.partition("/")[0], "no such path of a Kubernetes API")
    place = f"/{path[:80]}"
    text = f"the server could not find the requested resource: {place} is not served here: {why}"
    return NotFoundProblem(text)


_ACTING: Final = frozenset(
    {
        *("attach", "exec", "log", "portforward", "proxy"),
        *("binding", "eviction", "finalize", "token"),
    }
)
"""Subresources that reach into the cluster, or only take writes."""


def no_subresource(path: ResourcePath) -> Problem:
    """A subresource: what acts on the cluster is refused, the others do not exist."""
    first = path.subresource.partition("/")[0]
    if first not in _ACTING:
        return NotFoundProblem(
            "the server could not find the requested resource:"
            f" {path.qualified} have no subresource {path.subresource[:80]} here; there are status"
            " of types that have one, and scale of those that Kubernetes itself scales",
            details=path.details,
        )
    return MethodNotAllowedProblem(
        f"{path.plural}/{first} is not served here, only on the API server of the cluster itself:"
        f" {WHERE_TO_WRITE}",
        details=path.details,
    )


class UpgradeProblem(BadRequestProblem):
    """A client asks for another protocol, and would take an answer over HTTP for a failure."""

    def __init__(self, protocol: str) -> None:
        super().__init__(
            f"the connection cannot be upgraded to {protocol[:40]}: watches are sent over HTTP,"
            " one JSON document a line, so leave out the headers Connection and Upgrade"
        )


class OneClusterProblem(Problem):
    """A command waits for one object, and would be content with that of any cluster."""

    status = 409

    def __init__(self, command: str) -> None:
        super().__init__(
            f"{command} would end with the first cluster that has what it waits for, not with all:"
            " wait in each of them, at /kube/<cluster>"
        )


def bad_parameter(name: str, reason: str) -> BadRequestProblem:
    """A parameter that cannot be read."""
    return BadRequestProblem(f"query parameter {name}: {reason}")
