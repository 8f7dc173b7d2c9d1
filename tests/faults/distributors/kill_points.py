"""The points between two writes of a process, at which it kills or stops itself on demand.

Each request that writes has two: before it is sent, and after it was committed and answered, with
nothing done about the answer. A point is named after its side and the request, like
`after PUT hub/multiclusterresources/status`, or after its number since the process was armed, like
`before write 3`. Distributors and agents have points: an agent passes a request on, and dies before
it has answered the distributor. What a process writes, and where it dies, it notes in a file.
"""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import orjson

from faults.distributors.settings import HUB
from faults.rig.armed import STOP, Armed, die, stand_still
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.http import HttpResponse
from fleetbus.kube.connection.response import Limits
from fleetbus.kube.requests import Call
from fleetbus_agent.call import AgentCall
from fleetbus_agent.member_server import MemberServer

BEFORE, AFTER = "before", "after"
_PLURAL_IN_NAMESPACE: Final = 2
POINTS: Final = tuple(
    f"{side} {write}"
    for write in (
        "PATCH hub/multiclusterresources",  # finalizer and confirmation
        "PUT hub/multiclusterresources/status",
        "POST hub/inventorychunks",
        "PATCH hub/inventorychunks",
        "DELETE hub/inventorychunks",
        "POST hub/controllerrevisions",
        "DELETE hub/controllerrevisions",
        "POST hub/events",
        "PATCH target/configmaps",
        "DELETE target/configmaps",
        "PATCH target/serviceaccounts",
        "DELETE target/serviceaccounts",
        "PATCH agent/configmaps",
        "DELETE agent/configmaps",
        "PATCH agent/serviceaccounts",
        "DELETE agent/serviceaccounts",
    )
    for side in (BEFORE, AFTER)
)
"""All of them: what is written that the campaign does not name is a violation."""
DISTRIBUTOR_POINTS: Final = tuple(point for point in POINTS if " agent/" not in point)
AGENT_POINTS: Final = tuple(point for point in POINTS if " agent/" in point)
RARE: Final = frozenset({"DELETE hub/configmaps"})
"""Writes that are points only by their number: of a stale leave record."""
_CALL: Final = ContextVar("call", default="")


def is_of_agents(point: str) -> bool:
    """Whether agents come by at a point, and not distributors."""
    return point in AGENT_POINTS


def name_of(place: str, call: Call) -> str:
    """The name of a write, sent by somebody at a place: `PATCH target/configmaps`."""
    parts = call.path.strip("/").split("/")
    tail = parts[2:] if parts[0] == "api" else parts[3:]
    if tail[0] == "namespaces" and len(tail) > _PLURAL_IN_NAMESPACE:
        tail = tail[_PLURAL_IN_NAMESPACE:]
    plural, subresource = tail[0], "".join(f"/{segment}" for segment in tail[2:])
    return f"{call.method} {place}/{plural}{subresource}"


def _is_write(call: Call) -> bool:
    return call.method != "GET" and "dryRun" not in (call.query or {})


class KillPoints:
    """The points of one process.

    Args:
        folder: of the seed.
        name: of the process.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.armed = _Numbered(folder / f"{name}.point")
        self._name = name
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(folder / "writes.jsonl", flags, 0o644)

    def wrap_distributor(self) -> None:
        """Put in the points of a distributor."""
        inner, points = KubeClient.request, self

        async def request(self: KubeClient, call: Call) -> bytes:
            if not _is_write(call):
                return await inner(self, call)
            write = name_of("hub" if self.cluster == HUB else "target", call)
            number = points.armed.count()
            points.pass_by(BEFORE, write, number)
            answer = await inner(self, call)
            points.pass_by(AFTER, write, number)
            return answer

        KubeClient.request = request

    def wrap_agent(self) -> None:
        """Put in the points of an agent; the notes name the call that is passed on."""
        run, inner, points = AgentCall.run, MemberServer.send, self

        async def run_named(self: AgentCall) -> None:
            _CALL.set(self.frame.id)
            await run(self)

        async def send(
            self: MemberServer, call: Call, limits: Limits, meant_uid: str
        ) -> HttpResponse:
            if not _is_write(call):
                return await inner(self, call, limits, meant_uid)
            write, number = name_of("agent", call), points.armed.count()
            points.pass_by(BEFORE, write, number, call=_CALL.get())
            response = await inner(self, call, limits, meant_uid)
            points.pass_by(AFTER, write, number, call=_CALL.get())
            return response

        AgentCall.run = run_named
        MemberServer.send = send

    def pass_by(self, side: str, write: str, number: int, **more: str) -> None:
        """Note a write, and die or stand still if it is the one."""
        points = (f"{side} {write}", f"{side} write {number}")
        is_end = any(self.armed.is_at(point) for point in points)
        if side == BEFORE or is_end:
            line = {"t": time.time(), "process": self._name, "side": side, "write": write}
            line |= {"dies": is_end, "number": number, **more}
            os.write(self._file, orjson.dumps(line) + b"\n")
        if is_end:
            die()
        if any(self.armed.is_at(f"{STOP}{point}") for point in points):
            stand_still()


class _Numbered(Armed):
    """Also counts the writes since the process was armed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._writes = 0

    def count(self) -> int:
        self._writes += 1
        return self._writes

    def _read(self, _number: int, _frame: object) -> None:
        super()._read(_number, None)
        self._writes = 0
