"""Services: names in hosts files, and addresses that lead to ready pods: DNS and kube-proxy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.kubelet.api import Object
from support.kubelet.pod import Pod

_LOCAL = "127.0.0.1 localhost\n"
_CHUNK = 65536
Place = tuple[str, int]


@dataclass
class Network:
    """The Services of a cluster.

    Attributes:
        names: a file with lines for the hosts file of every pod, like names outside of the cluster.
    """

    names: Path | None = None
    _servers: dict[Place, asyncio.Server] = field(default_factory=dict[Place, asyncio.Server])
    _backends: dict[Place, list[Place]] = field(default_factory=dict[Place, list[Place]])
    _turns: itertools.count[int] = field(default_factory=itertools.count)

    async def aclose(self) -> None:
        """Listen nowhere any more."""
        for server in self._servers.values():
            server.close()

    async def update(
        self, services: Sequence[Object], pods: Sequence[Pod], hosts: Mapping[str, Path]
    ) -> None:
        """Follow the Services and pods as they are now."""
        lines: list[tuple[str, str, list[str]]] = []
        backends: dict[Place, list[Place]] = {}
        for service in services:
            chosen = [pod for pod in pods if _selects(service, pod)]
            lines += _names(service, chosen)
            backends |= _backends(service, chosen)
        self._backends = backends
        for place in backends.keys() - self._servers.keys():
            self._servers[place] = await self._listen(place)
        for place in self._servers.keys() - backends.keys():
            self._servers.pop(place).close()
        first = _LOCAL + (self.names.read_text() if self.names is not None else "")
        for namespace, path in hosts.items():
            _write(path, first + "".join(_line(line, namespace) for line in lines))

    async def _listen(self, place: Place) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._forward(place, reader, writer)

        return await asyncio.start_server(serve, *place)

    async def _forward(
        self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Connect to one of the pods; without one the client sees a connection that ends."""
        with contextlib.suppress(OSError):
            if backends := self._backends.get(place):
                backend = backends[next(self._turns) % len(backends)]
                onward, back = await asyncio.open_connection(*backend)
                await asyncio.gather(_copy(reader, back), _copy(onward, writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def _selects(service: Object, pod: Pod) -> bool:
    spec, meta = service["spec"], pod.latest["metadata"]
    if not spec.get("selector") or meta["namespace"] != service["metadata"]["namespace"]:
        return False
    fits = spec["selector"].items() <= meta.get("labels", {}).items()
    return fits and (pod.is_ready or spec.get("publishNotReadyAddresses", False))


def _names(service: Object, pods: Sequence[Pod]) -> list[tuple[str, str, list[str]]]:
    """Namespace, address and names in it, of the Service and of pods behind a headless one."""
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    address = service["spec"].get("clusterIP", "None")
    if address != "None":
        return [(namespace, address, [name])]
    names: list[tuple[str, str, list[str]]] = []
    for pod in pods:
        host = pod.latest["spec"].get("hostname") or pod.latest["metadata"]["name"]
        names.append((namespace, pod.address, [name, f"{host}.{name}"]))
    return names


def _line(entry: tuple[str, str, list[str]], namespace: str) -> str:
    place, address, names = entry
    ends = (f".{place}", f".{place}.svc", f".{place}.svc.cluster.local")
    hosts = [f"{name}{end}" for name in names for end in ends]
    return " ".join([address, *hosts, *(names if place == namespace else ())]) + "\n"


def _backends(service: Object, pods: Sequence[Pod]) -> dict[Place, list[Place]]:
    address = service["spec"].get("clusterIP", "None")
    if address == "None" or not service["spec"].get("selector"):
        return {}
    return {
        (address, port["port"]): [
            (pod.address, number) for pod in pods if (number := _port(pod, port)) is not None
        ]
        for port in service["spec"]["ports"]
    }


def _port(pod: Pod, port: Object) -> int | None:
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    ports = [p for c in pod.latest["spec"]["containers"] for p in c.get("ports", ())]
    return next((one["containerPort"] for one in ports if one.get("name") == target), None)


def _write(path: Path, text: str) -> None:
    """Into the same file, which is mounted in containers."""
    if path.read_text() != text:
        with path.open("r+") as file:
            file.write(text)
            file.truncate()
