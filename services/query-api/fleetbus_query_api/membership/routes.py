"""Serves join and unjoin of multi_resource_operator: the only requests that write (rule A7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from fleetbus.clusters.membership import AlreadyJoined, NotJoined, NotPossible, join, unjoin
from fleetbus.clusters.providers.cluster import CLUSTERS
from fleetbus.errors import AlreadyExists, FleetbusError, Forbidden, Unauthorized
from fleetbus.kube.client import KubeClient
from fleetbus_proto.subjects import check_cluster
from fleetbus_query_api.access.audit import note_on_hub
from fleetbus_query_api.access.authorise import Right
from fleetbus_query_api.membership.caller import CallerHub
from fleetbus_query_api.membership.rights import (
    require,
    rights_to_join,
    rights_to_secrets,
    rights_to_unjoin,
)
from fleetbus_query_api.membership.upload import FIELD, read_kubeconfig
from fleetbus_query_api.requests.parameters import check_repeats
from fleetbus_query_api.requests.routing import component
from fleetbus_query_api.requests.user import RequestUser, User
from fleetbus_query_api.responses.problem import (
    BadRequestProblem,
    ConflictProblem,
    ForbiddenProblem,
    NotFoundProblem,
    Problem,
    UnavailableProblem,
)
from fleetbus_query_api.responses.render import json_response

log = structlog.get_logger()

_WITHIN_SECONDS: Final = 25
_BOOLEANS: Final = {"true": True, "false": False}
_JOINED: Final = b'{"res":"join cluster successful"}'
_LEFT: Final = b'{"res":"unjoin cluster successful"}'

_MEANINGS: Final[tuple[tuple[tuple[type[Exception], ...], type[Problem]], ...]] = (
    ((Forbidden,), ForbiddenProblem),
    ((AlreadyExists, AlreadyJoined), ConflictProblem),
    ((NotJoined,), NotFoundProblem),
    ((NotPossible,), BadRequestProblem),
)


class _Asked(NamedTuple):
    """The parameters of a request."""

    cluster: str
    insecure: bool = False

    @classmethod
    def read(cls, pairs: Sequence[tuple[str, str]], names: Collection[str]) -> _Asked:
        """Parse query parameters.

        Raises:
            BadRequestProblem: one is missing, unknown, given twice or malformed.
            InvalidName: the name cannot be that of a cluster.
        """
        check_repeats([name for name, _ in pairs])
        parameters = dict(pairs)
        if unknown := sorted(parameters.keys() - set(names)):
            raise BadRequestProblem(
                f"unknown query parameter {unknown[0][:80]!r}; known: {', '.join(names)}"
            )
        if not parameters.get("cluster"):
            raise BadRequestProblem("not found cluster: name it with ?cluster=NAME")
        insecure = _BOOLEANS.get((parameters.get("insecure") or "false").lower())
        if insecure is None:
            raise BadRequestProblem(
                f"insecure {parameters['insecure'][:20]!r} is neither true nor false"
            )
        return cls(check_cluster(parameters["cluster"]), insecure)


class Membership:
    """Joins and unjoins clusters for the callers of requests.

    Args:
        callers: connects to the hub with their rights.
        namespace: the namespace of fleetbus on the hub.
    """

    def __init__(self, *, callers: CallerHub, namespace: str) -> None:
        self._callers = callers
        self._namespace = namespace
        self._busy: set[str] = set()

    async def join(self, request: Request, user: User) -> Response:
        """Make a cluster a member.

        Raises:
            Problem: it is not possible, or the caller may not.
        """
        query = _Asked.read(request.query_params.multi_items(), ("cluster", "insecure"))
        async with self._writing(request, Right("create", name=query.cluster)) as hub:
            await require(hub, rights_to_join(query.cluster, self._namespace))
            with self._alone(query.cluster):
                config = await read_kubeconfig(request)
                await join(
                    hub, query.cluster, config, namespace=self._namespace, insecure=query.insecure
                )
        log.info("cluster_joined", cluster=query.cluster, user=user.name)
        return json_response(_JOINED)

    async def unjoin(self, request: Request, user: User) -> Response:
        """Let a cluster leave.

        Raises:
            Problem: it is not possible, or the caller may not.
        """
        query = _Asked.read(request.query_params.multi_items(), ("cluster",))
        async with self._writing(request, Right("delete", name=query.cluster)) as hub:
            await require(hub, rights_to_unjoin(query.cluster, self._namespace))
            with self._alone(query.cluster):
                await self._leave(hub, query.cluster)
        log.info("cluster_unjoined", cluster=query.cluster, user=user.name)
        return json_response(_LEFT)

    async def _leave(self, hub: KubeClient, name: str) -> None:
        if name == self._callers.hub_cluster:
            raise BadRequestProblem(f"{name!r} is the hub of the fleet: it cannot leave")
        if cluster := await hub.get(CLUSTERS, "", name):
            await require(hub, rights_to_secrets(cluster))
        await unjoin(hub, name, namespace=self._namespace)

    @asynccontextmanager
    async def _writing(self, request: Request, right: Right) -> AsyncGenerator[KubeClient]:
        """Connect as the caller, note the decision, and translate what is refused.

        Raises:
            Problem: it was not done.
        """
        try:
            async with (
                asyncio.timeout(_WITHIN_SECONDS),
                self._callers.connect(request.scope) as hub,
            ):
                yield hub
        except (FleetbusError, TimeoutError) as e:
            problem = e if isinstance(e, Problem) else self._translate(e)
            note_on_hub(right, is_allowed=not isinstance(problem, ForbiddenProblem))
            raise problem from None
        note_on_hub(right, is_allowed=True)

    def _translate(self, error: Exception) -> Problem:
        if isinstance(error, Unauthorized):
            return self._refused_credentials()
        if isinstance(error, TimeoutError):
            return UnavailableProblem(
                f"the hub did not answer within {_WITHIN_SECONDS} s; send the request again"
            )
        for kinds, meaning in _MEANINGS:
            if isinstance(error, kinds):
                return meaning(str(error))
        return UnavailableProblem(f"the hub: {error}")

    def _refused_credentials(self) -> Problem:
        if self._callers.is_open:
            return UnavailableProblem("the hub does not accept the credentials of the query API")
        return ForbiddenProblem(
            "the hub's API server does not accept your token, and only it can let a cluster join or"
            " leave: get a token for both, `kubectl create token NAME --audience=fleetbus"
            " --audience=<that of the API server>`, or use `fleetbus join` and `fleetbus unjoin`"
            " with your kubeconfig of the hub"
        )

    @contextmanager
    def _alone(self, name: str) -> Generator[None]:
        """Let nobody else join or unjoin a cluster of this name meanwhile.

        Raises:
            ConflictProblem: somebody does.
        """
        if name in self._busy:
            raise ConflictProblem(f"cluster {name!r} is joining or leaving just now")
        self._busy.add(name)
        try:
            yield
        finally:
            self._busy.discard(name)


def _parameter(name: str, kind: str, description: str) -> dict[str, Any]:
    parameter = {"name": name, "in": "query", "schema": {"type": kind}, "description": description}
    return parameter | {"required": name == "cluster"}


_NAME: Final = _parameter("cluster", "string", "The name of the cluster in the fleet.")


def _answers(*statuses: int) -> dict[str, Any]:
    def answer(description: str, field: str) -> dict[str, Any]:
        fields = {field: {"type": "string"}}
        schema = {"type": "object", "properties": fields, "required": [field]}
        return {"description": description, "content": {"application/json": {"schema": schema}}}

    errors = {str(status): answer("Refused, or not possible now.", "error") for status in statuses}
    return {"200": answer("Done.", "res"), **errors}


_COMMON: Final = (400, 401, 403, 405, 409, 421, 429, 503)
_JOIN_OPENAPI: Final[dict[str, Any]] = {
    "parameters": [
        _NAME,
        _parameter("insecure", "boolean", "Do not verify the certificate of its API server."),
    ],
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {FIELD: {"type": "string", "format": "binary"}},
                    "required": [FIELD],
                }
            }
        },
    },
    "responses": _answers(*_COMMON, 413),
}
_UNJOIN_OPENAPI: Final[dict[str, Any]] = {
    "parameters": [_NAME],
    "responses": _answers(*_COMMON, 404),
}


router = APIRouter(prefix="/v1", tags=["multi_resource_operator"])


@router.post("/join", openapi_extra=_JOIN_OPENAPI)
async def join_cluster(request: Request, user: RequestUser) -> Response:
    """Make a cluster a member of the fleet, with your rights on the hub."""
    return await component(request, Membership).join(request, user)


@router.delete("/unjoin", openapi_extra=_UNJOIN_OPENAPI)
async def unjoin_cluster(request: Request, user: RequestUser) -> Response:
    """Let a cluster leave the fleet, with your rights on the hub; its objects stay there."""
    return await component(request, Membership).unjoin(request, user)
