"""Refuses to wait for an object of the fleet, where that of any cluster would end the wait.

`kubectl wait` and `kubectl rollout status` list and watch one name, and take all that comes for
states of one object. So the fleet refuses them, by the header with which kubectl names its command,
and every other client that follows one name where several clusters have an object of it.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from fleetbus.kube.field_paths import FieldPath
from fleetbus.kube.selectors import FieldSelector
from fleetbus_query_api.kube.problems import OneClusterProblem

_COMMAND: Final = "kubectl-command"
_SHOWS_ALL: Final = "kubectl get"
_OURS: Final = "fleetbus"
_WAITING: Final = frozenset({"kubectl wait", "kubectl rollout status"})
_NAME: Final = FieldPath.parse("metadata.name")


def refuse_waiting(request: Request) -> None:
    """Refuse a request of a command that waits; for requests to the fleet only.

    Raises:
        OneClusterProblem: it is one.
    """
    command = request.headers.get(_COMMAND, "")
    if command in _WAITING:
        raise OneClusterProblem(command)


def shows_all(request: Request) -> bool:
    """Whether the client is known to show objects of one name side by side."""
    agent = request.headers.get("user-agent", "")
    return agent == _OURS or request.headers.get(_COMMAND, "") == _SHOWS_ALL


def followed_name(fields: FieldSelector) -> str:
    """The name that a selector asks for; empty if it does not ask for exactly one."""
    names = (each.only_value for each in fields.requirements if each.path == _NAME)
    return next(names, "")
