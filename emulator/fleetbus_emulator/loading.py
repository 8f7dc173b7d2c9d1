"""Loading complete objects into clusters of another process: routes of its admin endpoint.

POST /clusters/C/objects       lines of JSON, {"type": "apps/v1/deployments", "object": {...}}

stores them with status, owners and uids, types and namespaces first, replacing what exists, and
leaves them as they are, see `Simulator.load`. It answers a line for every few hundred objects,
`{"objects": so many}`, and in the end one that also has `types`, how many of each; `notServed`,
how many of types that the cluster does not serve; and `refused`, the first that cannot be stored.

POST /clusters/C/controllers   {"running": false}, or true: whether its controllers act
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import orjson
from aiohttp import web

from fleetbus_emulator.apiserver import ApiError, FieldError, NotServed
from fleetbus_emulator.apiserver.admin import AdminError
from fleetbus_emulator.apiserver.admin.routes import JSON_LINES, Refusal, read_body
from fleetbus_emulator.generate.fill import uncollected

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Iterable

    from fleetbus_emulator.apiserver.admin import AdminClient
    from fleetbus_emulator.controllers import Simulator

JsonObject = dict[str, Any]
_SLICE: Final = 250
"""Objects: some ten milliseconds, in which the loop does nothing else."""
_LONGEST_LINE: Final = 64 * 1024 * 1024
_SHOWN: Final = 20


@dataclass(slots=True)
class Loaded:
    """The outcome of a load.

    Attributes:
        types: How many objects of each type were stored.
        not_served: How many were left out, by type, because the cluster does not serve it.
        refused: Why others were left out; the first ones.
        refused_count: How many those are.
    """

    types: Counter[str] = field(default_factory=Counter[str])
    not_served: Counter[str] = field(default_factory=Counter[str])
    refused: list[str] = field(default_factory=list[str])
    refused_count: int = 0

    @property
    def objects(self) -> int:
        """Number of stored objects."""
        return self.types.total()


def load_routes(simulators: Iterable[Simulator]) -> Iterable[web.RouteDef]:
    """The routes, for `serve_admin`."""
    loading = _Loading(simulators)
    return [
        web.post("/clusters/{cluster}/objects", loading.load),
        web.post("/clusters/{cluster}/controllers", loading.run_controllers),
    ]


class _Loading:
    def __init__(self, simulators: Iterable[Simulator]) -> None:
        self._simulators = {simulator.cluster.name: simulator for simulator in simulators}

    async def run_controllers(self, request: web.Request) -> web.Response:
        simulator = self._simulator(request)
        running = (await read_body(request, "running")).get("running")
        if not isinstance(running, bool):
            raise FieldError("running", "must be true or false")
        if running:
            simulator.resume()
        else:
            simulator.pause()
        return web.json_response({"running": running})

    async def load(self, request: web.Request) -> web.StreamResponse:
        simulator = self._simulator(request)
        response = web.StreamResponse(headers={"Content-Type": JSON_LINES})
        await response.prepare(request)
        loaded = Loaded()
        try:
            with uncollected():
                async for lines in _slices(request):
                    _store(simulator, lines, loaded)
                    await response.write(_line({"objects": loaded.objects}))
        except FieldError as error:
            await response.write(_line({"error": str(error)}))
            return response
        gc.freeze()  # they stay, and are too many to be looked through again and again
        await response.write(_line(_document(loaded)))
        return response

    def _simulator(self, request: web.Request) -> Simulator:
        name = request.match_info["cluster"]
        simulator = self._simulators.get(name)
        if simulator is None:
            names = ", ".join(self._simulators)
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no cluster {name!r}, only {names}")
        return simulator


def _store(simulator: Simulator, lines: list[bytes], loaded: Loaded) -> None:
    for line in lines:
        gvr, obj = _parse(line)
        try:
            simulator.load([(gvr, obj)])
        except NotServed:
            loaded.not_served[gvr] += 1
        except ApiError as error:
            loaded.refused_count += 1
            if len(loaded.refused) < _SHOWN:
                loaded.refused.append(error.message)
        else:
            loaded.types[gvr] += 1


def _parse(line: bytes) -> tuple[str, JsonObject]:
    """The type and the object of a line.

    Raises:
        FieldError: It has none.
    """
    try:
        content: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise FieldError("line", f"is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise FieldError("line", "must be an object with the fields type and object")
    document = cast("JsonObject", content)
    gvr, obj = document.get("type"), document.get("object")
    if not isinstance(gvr, str):
        raise FieldError("type", "must be a type, like v1/pods")
    if not isinstance(obj, dict) or not isinstance(cast("Any", obj).get("metadata"), dict):
        raise FieldError("object", "must be an object with metadata")
    return gvr, cast("JsonObject", obj)


async def _slices(request: web.Request) -> AsyncGenerator[list[bytes]]:
    """The lines of a body, some hundred at a time."""
    lines: list[bytes] = []
    remainder = b""
    async for chunk in request.content.iter_any():
        *complete, remainder = (remainder + chunk).split(b"\n")
        if len(remainder) > _LONGEST_LINE:
            raise FieldError("line", f"is longer than {_LONGEST_LINE} bytes")
        lines += [line for line in complete if line]
        while len(lines) >= _SLICE:
            yield lines[:_SLICE]
            del lines[:_SLICE]
            await asyncio.sleep(0)
    yield [*lines, *([remainder] if remainder else [])]


def _document(loaded: Loaded) -> JsonObject:
    return {
        "objects": loaded.objects,
        "types": dict(loaded.types),
        "notServed": dict(loaded.not_served),
        "refused": loaded.refused,
        "refusedCount": loaded.refused_count,
    }


def _line(document: JsonObject) -> bytes:
    return orjson.dumps(document) + b"\n"


# --- the other side ---------------------------------------------------------------------------


async def load_objects(
    admin: AdminClient, cluster: str, lines: AsyncIterable[bytes]
) -> AsyncGenerator[Loaded]:
    """Load lines of JSON through the admin endpoint, and yield the progress; the last is whole.

    Raises:
        AdminError: The endpoint refused a line; what came before it is stored.
    """
    async for progress in admin.stream(cluster, "objects", lines):
        if "error" in progress:
            raise AdminError(HTTPStatus.BAD_REQUEST, {"error": f"{cluster}: {progress['error']}"})
        types = progress.get("types") or {"": progress["objects"]}
        yield Loaded(
            Counter(types),
            Counter(progress.get("notServed") or {}),
            list(progress.get("refused") or []),
            int(progress.get("refusedCount", 0)),
        )


async def run_controllers(admin: AdminClient, cluster: str, *, running: bool) -> None:
    """Let the controllers of a cluster act, or not; raises as `AdminClient` does."""
    await admin.change(cluster, "controllers", {"running": running})
