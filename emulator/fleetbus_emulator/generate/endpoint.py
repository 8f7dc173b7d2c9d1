"""Filling clusters that run in another process: a route of the admin endpoint, and who asks it.

POST /clusters/C/fill   {"objects": n, "seed": 0, "only": [], "canary": "", "hostile": false}

answers a line of JSON for every few hundred objects, `{"objects": so many}`, and in the end one
that also has `types`: how many of each. In between, the cluster goes on with its other work.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from fleetbus_emulator.apiserver import ApiError, FieldError
from fleetbus_emulator.apiserver.admin import AdminClient, AdminError
from fleetbus_emulator.apiserver.admin.routes import JSON_LINES, Refusal, read_body
from fleetbus_emulator.apiserver.json_tree import as_list
from fleetbus_emulator.generate.fill import population_for, uncollected

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from fleetbus_emulator.apiserver import ApiServers, Cluster
    from fleetbus_emulator.generate.objects.population import Population
    from fleetbus_emulator.generate.objects.workloads import Made

JsonObject = dict[str, Any]
SLICE = 250  # objects: some ten milliseconds, in which the loop does nothing else
LARGEST_SEED = 2**53
FIELDS = ("objects", "seed", "only", "canary", "hostile")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a fill; `types` is empty until it is done."""

    objects: int
    types: dict[str, int] = field(default_factory=dict[str, int])


def fill_routes(servers: ApiServers) -> Iterable[web.RouteDef]:
    """The route, for `serve_admin`."""
    return [web.post("/clusters/{cluster}/fill", _Filling(servers).fill)]


class _Filling:
    def __init__(self, servers: ApiServers) -> None:
        self._servers = servers
        self._busy: set[str] = set()

    async def fill(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["cluster"]
        cluster = self._servers.clusters.get(name)
        if cluster is None:
            names = ", ".join(self._servers.clusters)
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no cluster {name!r}, only {names}")
        population = _population(cluster, await read_body(request, *FIELDS))
        if name in self._busy:
            raise Refusal(HTTPStatus.CONFLICT, f"cluster {name} is being filled")
        self._busy.add(name)
        try:
            return await _answer(request, cluster, population)
        finally:
            self._busy.discard(name)


async def _answer(
    request: web.Request, cluster: Cluster, population: Population
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": JSON_LINES})
    await response.prepare(request)
    with uncollected():
        async for document in _restored(cluster, population):
            await response.write(orjson.dumps(document) + b"\n")
    gc.freeze()  # they stay, and are too many to be looked through again and again
    return response


async def _restored(cluster: Cluster, population: Population) -> AsyncGenerator[JsonObject]:
    """Restore slice by slice, and yield the progress."""
    counts: Counter[str] = Counter()
    for batch in _slices(population):
        try:
            cluster.restore(batch)
        except ApiError as error:
            yield {"error": error.message}
            return
        counts.update(gvr for gvr, _ in batch)
        yield {"objects": counts.total()}
        await asyncio.sleep(0)
    yield {"objects": counts.total(), "types": dict(counts.most_common())}


def _slices(population: Population) -> Iterator[list[Made]]:
    """Whole groups, some hundred objects at a time: the controllers look on in between."""
    batch: list[Made] = []
    for group in population.groups():
        batch += group
        if len(batch) >= SLICE:
            yield batch
            batch = []
    if batch:
        yield batch


def _population(cluster: Cluster, document: JsonObject) -> Population:
    objects, seed = document.get("objects"), document.get("seed", 0)
    if not isinstance(objects, int) or isinstance(objects, bool) or objects < 1:
        raise FieldError("objects", "must be a whole number, at least 1")
    if not isinstance(seed, int) or isinstance(seed, bool) or abs(seed) > LARGEST_SEED:
        raise FieldError("seed", f"must be a whole number from -{LARGEST_SEED} to {LARGEST_SEED}")
    only = as_list(document.get("only", []))
    if only is None or not all(isinstance(gvr, str) for gvr in only):
        raise FieldError("only", "must be a list of types, like v1/pods")
    canary, hostile = document.get("canary", ""), document.get("hostile", False)
    if not isinstance(canary, str):
        raise FieldError("canary", "must be a string")
    if not isinstance(hostile, bool):
        raise FieldError("hostile", "must be true or false")
    try:
        return population_for(
            cluster, objects=objects, seed=seed, only=only, canary=canary, hostile=hostile
        )
    except ValueError as error:
        raise FieldError("only", str(error).removeprefix("only: ")) from None


async def ask_to_fill(
    admin: AdminClient, cluster: str, document: JsonObject
) -> AsyncGenerator[Progress]:
    """Fill a cluster through the admin endpoint; the last progress has the types.

    Raises:
        AdminError: The endpoint refused, or an object could not be stored; what came before it is.
    """
    async for line in admin.stream(cluster, "fill", document):
        if "error" in line:
            raise AdminError(HTTPStatus.CONFLICT, {"error": f"cluster {cluster}: {line['error']}"})
        yield Progress(line["objects"], line.get("types", {}))
