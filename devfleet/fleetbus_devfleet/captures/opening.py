"""Loads a capture into the emulated clusters of a stack."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson

from fleetbus.errors import CaptureError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus_devfleet.captures.prepare import Preparation
from fleetbus_emulator.apiserver.admin import AdminClient, AdminError
from fleetbus_emulator.loading import Loaded, load_objects

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
    from pathlib import Path

    from fleetbus_cli.capture.format import CapturedObject
    from fleetbus_cli.capture.reading import Capture

JsonObject = dict[str, Any]
_CHUNK: Final = 256 * 1024
_NODES: Final = "v1/nodes"
_SIMULATED: Final = "sim-node-"


@dataclass(slots=True)
class Opened:
    """The outcome of opening a capture; it is kept beside the stack as JSON.

    Attributes:
        objects: how many objects of the capture and made up ones each cluster got.
        not_served: how many the emulated clusters do not serve, by type.
        without_body: how many were captured without their content, by type.
        refused: why others were left out; the first ones.
        refused_count: how many those are.
        owners_dropped: how many lost a reference to an owner that was not captured.
    """

    objects: dict[str, int] = field(default_factory=dict[str, int])
    not_served: Counter[str] = field(default_factory=Counter[str])
    without_body: Counter[str] = field(default_factory=Counter[str])
    refused: list[str] = field(default_factory=list[str])
    refused_count: int = 0
    owners_dropped: int = 0

    @property
    def total(self) -> int:
        """Number of objects that all clusters got."""
        return sum(self.objects.values())

    def notes(self) -> list[str]:
        """Describe what is not as it was captured, for people."""
        lines: list[str] = []
        for kind, reason in (
            (self.not_served, "the emulated clusters do not serve"),
            (self.without_body, "were captured without their content:"),
        ):
            if kind:
                types = ", ".join(f"{count} {name}" for name, count in sorted(kind.items()))
                lines.append(f"{kind.total()} objects left out, {reason} {types}")
        if self.refused_count:
            lines.append(f"{self.refused_count} objects left out: {'; '.join(self.refused[:3])}")
        if self.owners_dropped:
            lines.append(f"{self.owners_dropped} objects lost an owner that was not captured")
        return lines

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_bytes(orjson.dumps(asdict(self)))

    def add(self, cluster: str, loaded: Loaded) -> None:
        """Add the outcome of a load."""
        self.objects[cluster] = self.objects.get(cluster, 0) + loaded.objects
        self.not_served += loaded.not_served
        self.refused += loaded.refused
        self.refused_count += loaded.refused_count


def read_opened(path: Path) -> Opened | None:
    """Read what `write` wrote; None if the stack was not opened from a capture."""
    try:
        fields: JsonObject = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    for name in ("not_served", "without_body"):
        fields[name] = Counter[str](fields[name])
    return Opened(**fields)


def nothing(_count: int) -> None:
    """Report no progress."""


async def open_capture(
    capture: Capture,
    *,
    admin_url: str,
    kubeconfig: Path,
    suspended: bool = False,
    report: Callable[[int], None] = nothing,
) -> Opened:
    """Load every object of a capture; the clusters must run, and be empty.

    Args:
        capture: it is read three times, and never held in memory.
        admin_url: of the emulated clusters.
        kubeconfig: with a context per cluster.
        suspended: suspend the MultiClusterResources.
        report: called with the number of objects so far.

    Raises:
        CaptureError: an emulated cluster refused everything.
    """
    opened = Opened()
    preparation = Preparation(capture, suspended=suspended)
    await _drop_simulated_nodes(capture, kubeconfig)
    try:
        async with AdminClient(admin_url) as admin:
            for cluster in capture.header.clusters:
                loaded = await _load(
                    admin, cluster.name, preparation.missing(cluster.name), report, 0
                )
                opened.add(cluster.name, loaded)
            for name, objects in groupby(capture.objects(), key=lambda obj: obj.cluster):
                lines = preparation.lines(name, objects)
                opened.add(name, await _load(admin, name, lines, report, opened.total))
    except (aiohttp.ClientError, AdminError) as e:
        raise CaptureError(f"{capture.path}: cannot be opened: {e}") from e
    opened.without_body = preparation.without_body
    opened.owners_dropped = preparation.owners_dropped
    return opened


async def _load(
    admin: AdminClient,
    cluster: str,
    lines: Iterator[bytes],
    report: Callable[[int], None],
    before: int,
) -> Loaded:
    loaded = Loaded()
    async with aclosing(load_objects(admin, cluster, _chunks(lines))) as progress:
        async for loaded in progress:
            report(before + loaded.objects)
    return loaded


async def _chunks(lines: Iterable[bytes]) -> AsyncGenerator[bytes]:
    """Join lines: a chunk each would cost more than its content."""
    pending: list[bytes] = []
    size = 0
    for line in lines:
        pending.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield b"".join(pending)
            pending.clear()
            size = 0
    yield b"".join(pending)


async def _drop_simulated_nodes(capture: Capture, kubeconfig: Path) -> None:
    """Remove the nodes of the emulator where those of the cluster were captured."""
    with_nodes = {node.cluster for node in _nodes_of(capture)}
    for name in with_nodes:
        async with KubeClient(read_kube_config(kubeconfig, name)) as client:
            for node in await client.list(_NODES):
                if str(node["metadata"]["name"]).startswith(_SIMULATED):
                    await client.delete(_NODES, "", node["metadata"]["name"])


def _nodes_of(capture: Capture) -> Iterator[CapturedObject]:
    return (obj for obj in capture.objects() if str(obj.type) == _NODES)
