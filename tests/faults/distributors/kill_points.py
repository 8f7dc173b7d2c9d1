"""The points between two writes of a distributor, at which it kills itself on demand.

Each request that writes has two: before it is sent, and after it was committed and answered, with
nothing done about the answer. A point is named after its side and the request, like
`after PUT hub/multiclusterresources/status`, or after its number since the process was armed, like
`before write 3`. What a process writes, and where it dies, it notes in a file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import orjson

from faults.distributors.settings import HUB
from faults.rig.armed import Armed, die
from fleetbus.kube.client import KubeClient
from fleetbus.kube.requests import Call

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
    )
    for side in (BEFORE, AFTER)
)
"""All of them: what a distributor writes that the campaign does not name is a violation."""
RARE: Final = frozenset({"DELETE hub/configmaps"})
"""Writes that are points only by their number: of a stale leave record."""


def name_of(cluster: str, call: Call) -> str:
    """The name of a write: `PATCH target/configmaps`."""
    parts = call.path.strip("/").split("/")
    tail = parts[2:] if parts[0] == "api" else parts[3:]
    if tail[0] == "namespaces" and len(tail) > _PLURAL_IN_NAMESPACE:
        tail = tail[_PLURAL_IN_NAMESPACE:]
    plural, subresource = tail[0], "".join(f"/{segment}" for segment in tail[2:])
    return f"{call.method} {'hub' if cluster == HUB else 'target'}/{plural}{subresource}"


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

    def wrap(self) -> None:
        """Put all points in."""
        inner, points = KubeClient.request, self

        async def request(self: KubeClient, call: Call) -> bytes:
            if call.method == "GET" or "dryRun" in (call.query or {}):
                return await inner(self, call)
            write = name_of(self.cluster, call)
            number = points.armed.count()
            points.pass_by(BEFORE, write, number)
            answer = await inner(self, call)
            points.pass_by(AFTER, write, number)
            return answer

        KubeClient.request = request

    def pass_by(self, side: str, write: str, number: int) -> None:
        """Note a write, and die if it is the one."""
        is_end = any(
            self.armed.is_at(point) for point in (f"{side} {write}", f"{side} write {number}")
        )
        if side == BEFORE or is_end:
            line = {"t": time.time(), "process": self._name, "side": side, "write": write}
            os.write(self._file, orjson.dumps(line | {"dies": is_end, "number": number}) + b"\n")
        if is_end:
            die()


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
