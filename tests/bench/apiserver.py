"""The emulated API server beside a client, and bare aiohttp that answers constants the same way.

    python tests/run.py bench.apiserver [--json]

Each server is a process of its own and answers the same client: aiohttp for requests, plain sockets
for the watches. CPU is that of the server alone, per operation. `bare` is aiohttp's low-level
server with as many constant bytes: what the transport costs whatever is behind it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import aiohttp
import uvloop

from bench.programs.emulator import NAMESPACE, cluster_with_pods, sample_config_map
from bench.rig.command import run_command
from bench.rig.processes import process
from support.processes.programs import module

HOST = "127.0.0.1"
WRITERS = 16
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    seconds: float = 2
    """For each line."""
    listed: int = 3_000
    lists: int = 15
    watchers: int = 100
    clusters: int = 100
    loaded: int = 100_000


TINY = Sizes(seconds=0.05, listed=50, lists=1, watchers=3, clusters=3, loaded=100)


class Line(NamedTuple):
    """One row of the report; the target is for ours."""

    job: str
    unit: str
    ours: float
    cpu_us: float | None
    bare: float | None
    bare_cpu_us: float | None
    target: str


# the servers ------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class Server(NamedTuple):
    """A server process."""

    url: str
    pid: int


@asynccontextmanager
async def server(name: str, *words: str) -> AsyncGenerator[Server]:
    """A program of ours; its first line of output is its URL."""
    async with process(module(f"bench.programs.{name}", *words)) as child:
        assert child.stdout is not None
        yield Server((await child.stdout.readline()).decode().strip(), child.pid)


async def report_of(*words: str) -> dict[str, float]:
    """The figures that the emulator prints of itself."""
    async with process(module("bench.programs.emulator", *words)) as child:
        out, _ = await child.communicate()
    return json.loads(out)


# writes and reads -------------------------------------------------------------------------------


class Call(NamedTuple):
    """A request."""

    method: str
    path: str
    body: bytes = b""
    content: str = "application/json"


class Rate(NamedTuple):
    """Results of requests; CPU of each, bytes of the last answer."""

    requests: int
    per_second: float
    cpu_us: float
    size: int


async def rate(server: Server, calls: Iterable[Call], seconds: float) -> Rate:
    """Send requests from several clients for some seconds."""
    source, count, size = iter(calls), 0, 0
    begun = time.perf_counter()

    async def send(session: aiohttp.ClientSession) -> None:
        nonlocal count, size
        while not count or time.perf_counter() < begun + seconds:
            call = next(source)
            headers = {"Content-Type": call.content}
            url = server.url + call.path
            async with session.request(call.method, url, data=call.body, headers=headers) as answer:
                body = await answer.read()
                assert answer.status in (200, 201), body
                count, size = count + 1, len(body)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        before = cpu_seconds(server.pid)
        await asyncio.gather(*(send(session) for _ in range(WRITERS)))
        elapsed = time.perf_counter() - begun
        busy = cpu_seconds(server.pid) - before
    return Rate(count, count / elapsed, busy / count * 1e6, size)


def _creates(plural: str, obj: dict[str, Any], root: str = "/api/v1") -> Iterable[Call]:
    path = f"{root}/namespaces/{NAMESPACE}/{plural}"
    template = json.dumps({**obj, "metadata": {**obj["metadata"], "name": "NAME"}})
    head, tail = template.encode().split(b'"NAME"')
    for number in range(10**9):
        yield Call("POST", path, head + b'"%s-%d"' % (plural.encode(), number) + tail)


def _applies(deployment: dict[str, Any]) -> Iterable[Call]:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    for number in range(10**9):
        name = f"d-{number}"
        body = {**deployment, "metadata": {**deployment["metadata"], "name": name}}
        query = "?fieldManager=bench"
        yield Call("PATCH", f"{path}/{name}{query}", json.dumps(body).encode(), APPLY)


def _repeated(path: str, method: str = "GET", **body: Any) -> Iterable[Call]:
    for number in range(10**9):
        patch = json.dumps(body).replace("NUMBER", str(number)).encode() if body else b""
        yield Call(method, path, patch, MERGE)


def sample_pod(listed: int) -> dict[str, Any]:
    """The first of those that our server has."""
    cluster = cluster_with_pods(listed)
    pod = cluster.get("v1/pods", *cluster.names("v1/pods")[0])
    assert pod is not None
    return pod


def sample_deployment(pod: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": "bench"}
    spec = {name: pod["spec"][name] for name in ("containers", "volumes", "serviceAccountName")}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"labels": labels},
        "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": template},
    }


async def bench_requests(emulated: Server, bare: Server, sizes: Sizes) -> list[Line]:
    pod = sample_pod(sizes.listed)
    plain = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    place = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
    widget = {"metadata": {}, "spec": {"text": "x" * 100}}
    widget |= {"apiVersion": "example.com/v1", "kind": "Widget"}
    status = {"message": "NUMBER"}
    jobs: list[tuple[str, Iterable[Call], str]] = [
        ("create a ConfigMap", _creates("configmaps", sample_config_map()), ">= 1,500"),
        ("create a pod of 2 containers", _creates("pods", plain), ""),
        ("create a custom resource", _creates("widgets", widget, "/apis/example.com/v1"), ""),
        ("apply a new Deployment", _applies(sample_deployment(pod)), ""),
        ("patch a pod's status", _repeated(f"{place}/status", "PATCH", status=status), ""),
        ("get a pod", _repeated(place), ""),
    ]
    lines: list[Line] = []
    for name, calls, target in jobs:
        measured_rate = await rate(emulated, calls, sizes.seconds)
        floor = await rate(
            bare, _repeated(f"/bytes/{measured_rate.size}", "POST", x=1), sizes.seconds
        )
        measured = (measured_rate.per_second, measured_rate.cpu_us, floor.per_second, floor.cpu_us)
        lines.append(Line(f"{name} ({measured_rate.size} B)", "/s", *measured, target))
    return lines


# lists ------------------------------------------------------------------------------------------


async def _lists(
    server: Server, path: str, headers: dict[str, str], count: int
) -> tuple[float, float, int]:
    """Median ms of a list, CPU us of the server, bytes received before they are unpacked."""
    times: list[float] = []
    size = 0
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(read_bufsize=2**22, auto_decompress=False) as session:
        before = cpu_seconds(server.pid)
        for _ in range(count):
            begun = time.perf_counter()
            async with session.get(server.url + path, headers=headers, timeout=timeout) as answer:
                size = len(await answer.read())
            times.append((time.perf_counter() - begun) * 1e3)
        busy = cpu_seconds(server.pid) - before
    return statistics.median(times), busy / count * 1e6, size


async def bench_lists(emulated: Server, bare: Server, sizes: Sizes) -> list[Line]:
    pods = "/api/v1/pods"
    identity = {"Accept-Encoding": "identity"}
    jobs: list[tuple[str, str, dict[str, str], str]] = [
        (f"list {sizes.listed} pods", pods, identity, "<= 50"),
        (f"list {sizes.listed} pods, gzip", pods, {"Accept-Encoding": "gzip"}, ""),
        (f"list {sizes.listed} pods as a Table", pods, {**identity, "Accept": TABLE}, ""),
        ("list 500 pods, one page", f"{pods}?limit=500", identity, ""),
        (
            f"list {sizes.listed} ConfigMaps",
            "/api/v1/namespaces/default/configmaps",
            identity,
            "<= 50",
        ),
    ]
    lines: list[Line] = []
    for name, path, headers, target in jobs:
        await _lists(emulated, path, headers, sizes.lists)
        p50, cpu, size = await _lists(emulated, path, headers, sizes.lists)
        floor, floor_cpu, _ = await _lists(bare, f"/bytes/{size}", identity, sizes.lists)
        job = f"{name} ({size / 2**20:.1f} MB)"
        lines.append(Line(job, "ms", p50, cpu, floor, floor_cpu, target))
    return lines


# watches ----------------------------------------------------------------------------------------


class Counter(asyncio.Protocol):
    """Counts the lines that end in `}`; nothing else in a stream of events looks so."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._last = b""
        self.opened = asyncio.get_running_loop().create_future()
        self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).write(
            f"GET {self._path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            self.opened.set_result(None)
        self.count += data.count(b"}\n") + (self._last == b"}" and data[:1] == b"\n")
        self._last = data[-1:]


async def fan_out(
    server: Server, path: str, writes: Iterable[Call], sizes: Sizes
) -> tuple[float, float]:
    """Events per second that reach all watchers together, CPU us of the server for each."""
    loop = asyncio.get_running_loop()
    port = int(server.url.rpartition(":")[2])
    pairs = [
        await loop.create_connection(lambda: Counter(path), HOST, port)
        for _ in range(sizes.watchers)
    ]
    counters = [counter for _, counter in pairs]
    await asyncio.gather(*(counter.opened for counter in counters))
    begun, before = time.perf_counter(), cpu_seconds(server.pid)
    expected = (await rate(server, writes, sizes.seconds)).requests * sizes.watchers
    while (received := sum(counter.count for counter in counters)) < expected:
        await asyncio.sleep(0.005)
        assert time.perf_counter() < begun + 10 * sizes.seconds + 5, (received, expected)
    elapsed, busy = time.perf_counter() - begun, cpu_seconds(server.pid) - before
    for transport, _ in pairs:
        transport.close()
    return received / elapsed, busy / received * 1e6


async def _from_now_on(server: Server, path: str) -> str:
    """The path of a watch that begins with the next change."""
    url = f"{server.url}{path}?limit=1"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        version = (await answer.json())["metadata"]["resourceVersion"]
    return f"{path}?watch=1&resourceVersion={version}"


async def bench_watches(emulated: Server, bare: Server, sizes: Sizes) -> list[Line]:
    pod = sample_pod(sizes.listed)
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    configs = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    jobs: list[tuple[str, int, str, Iterable[Call], str]] = [
        (
            f"events of a ConfigMap to {sizes.watchers} watchers",
            900,
            configs,
            _repeated(f"{configs}/configmaps-0", "PATCH", data={"KEY_1": "NUMBER"}),
            ">= 20,000",
        ),
        (
            f"events of a pod to {sizes.watchers} watchers",
            5_500,
            pods,
            _repeated(f"{pods}/{name}/status", "PATCH", status={"message": "NUMBER"}),
            ">= 20,000",
        ),
    ]
    lines: list[Line] = []
    for job, size, path, writes, target in jobs:
        per_second, cpu = await fan_out(emulated, await _from_now_on(emulated, path), writes, sizes)
        floor, floor_cpu = await fan_out(
            bare, "/watch", _repeated(f"/event/{size}", "POST", x=1), sizes
        )
        lines.append(Line(job, "/s", per_second, cpu, floor, floor_cpu, target))
    return lines


# many clusters, many objects --------------------------------------------------------------------


async def bench_scale(sizes: Sizes) -> list[Line]:
    starts = await report_of("start", str(sizes.clusters))
    load = await report_of("fill", str(sizes.loaded))

    def line(job: str, unit: str, value: float, target: str = "") -> Line:
        return Line(job, unit, value, None, None, None, target)

    return [
        line("start of three clusters", "ms", starts["three"] * 1e3, "<= 300"),
        line(f"start of {sizes.clusters} clusters", "ms", starts["many"] * 1e3),
        line("an empty cluster with its listener", "MB", starts["grown"] / sizes.clusters, "<= 2"),
        line(f"{sizes.loaded:,} pods loaded", "s", load["seconds"]),
        line("memory of one of them", "KB", load["grown"] * 1024 / sizes.loaded),
    ]


# the report -------------------------------------------------------------------------------------


async def measure(sizes: Sizes) -> list[dict[str, Any]]:
    async with (
        server("emulator", "serve", str(sizes.listed)) as emulated,
        server("bare_server") as bare,
    ):
        lines = await bench_lists(emulated, bare, sizes)
        lines += await bench_requests(emulated, bare, sizes)
        lines += await bench_watches(emulated, bare, sizes)
    lines += await bench_scale(sizes)
    return [line._asdict() for line in lines]


def show(lines: list[dict[str, Any]]) -> None:
    head = ("job", "ours", "CPU us", "bare", "CPU us", "target")
    print("{:<46}{:>14}{:>10}{:>14}{:>10}{:>12}".format(*head))
    for line in lines:
        unit = line["unit"]
        figures = ((line["ours"], unit), (line["cpu_us"], ""))
        figures += ((line["bare"], unit), (line["bare_cpu_us"], ""))
        columns = [_shown(value, of) for value, of in figures]
        print("{:<46}{:>14}{:>10}{:>14}{:>10}{:>12}".format(line["job"], *columns, line["target"]))


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


if __name__ == "__main__":
    run_command(measure, show, TINY, uvloop.run)
