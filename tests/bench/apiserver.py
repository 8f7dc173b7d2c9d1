"""The emulated API server beside a client, and bare aiohttp that answers constants the same way.

    python tests/run.py bench.apiserver [--json]

Each server is a process of its own and answers the same client: aiohttp for requests, plain sockets
for the watches. CPU is that of the server alone, per operation. `bare` is aiohttp's low-level
server with as many constant bytes: what the transport costs whatever is behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import aiohttp
import uvloop
from aiohttp import web

from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.generate import fill

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

HOST = "127.0.0.1"
WRITERS = 16
WATCHERS = 100
SECONDS = 2.0
LISTED = 3_000
LISTS = 15
CLUSTERS = 100
LOADED = 100_000
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
NAMESPACE = "bench"


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


async def serve_ours() -> None:
    """One cluster with so many pods, and a namespace to write into."""
    cluster = Cluster("bench")
    cluster.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
    fill(cluster, objects=LISTED, seed=1, only=["v1/pods"])
    settings = sample_config_map()
    for number in range(LISTED):
        metadata = {**settings["metadata"], "name": f"c{number}", "namespace": "default"}
        cluster.restore([("v1/configmaps", {**settings, "metadata": metadata})])
    cluster.create("apiextensions.k8s.io/v1/customresourcedefinitions", _definition())
    gc.collect()
    gc.freeze()
    async with serve([cluster]) as servers:
        print(servers.url("bench"), flush=True)
        await asyncio.Event().wait()


def _definition() -> dict[str, Any]:
    integer = {"type": "integer", "minimum": 0, "default": 1}
    spec = {"type": "object", "properties": {"size": integer, "text": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "kind": "Widget"}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": names,
            "scope": "Namespaced",
            "versions": [version],
        },
    }


class Bare:
    """Constant bytes: `/bytes/N` answers N of them, `/event/N` sends N to everyone at `/watch`."""

    def __init__(self) -> None:
        self._watches: set[web.StreamResponse] = set()
        self._constants: dict[int, bytes] = {}

    async def run(self) -> None:
        runner = web.ServerRunner(
            web.Server(self._answer, handler_cancellation=True, access_log=None)
        )
        await runner.setup()
        await web.TCPSite(runner, HOST, 0, backlog=1024).start()
        print(f"http://{HOST}:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        kind, _, size = http.path.strip("/").partition("/")
        await http.read()
        if kind == "watch":
            return await self._watch(http)
        constant = self._constants.setdefault(int(size), b"x" * (int(size) - 2) + b"}\n")
        if kind == "event":
            await asyncio.gather(*(watch.write(constant) for watch in self._watches))
            constant = constant[-2:]
        return web.Response(body=constant, headers={"Content-Type": "application/json"})

    async def _watch(self, http: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(http)
        self._watches.add(response)
        try:
            await asyncio.Event().wait()
        finally:
            self._watches.discard(response)
        return response


def cpu_seconds(pid: int) -> float:
    """What all threads of a process used so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class Server(NamedTuple):
    """A server process."""

    url: str
    pid: int


@asynccontextmanager
async def process(role: str) -> AsyncGenerator[Server]:
    """A child of this script; its first line of output is its URL or its report."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__)), "--role", role), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        line = await child.stdout.readline()
        yield Server(line.decode().strip(), child.pid)
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


# writes and reads -------------------------------------------------------------------------------


class Call(NamedTuple):
    """A request."""

    method: str
    path: str
    body: bytes = b""
    content: str = "application/json"


class Rate(NamedTuple):
    """How requests went; CPU of each, bytes of the last answer."""

    requests: int
    per_second: float
    cpu_us: float
    size: int


async def rate(server: Server, calls: Iterable[Call]) -> Rate:
    """Send requests from several clients for some seconds."""
    source, count, size = iter(calls), 0, 0
    begun = time.perf_counter()

    async def send(session: aiohttp.ClientSession) -> None:
        nonlocal count, size
        while time.perf_counter() < begun + SECONDS:
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


def sample_config_map() -> dict[str, Any]:
    data = {f"KEY_{n}": "some value of a setting" for n in range(8)}
    return {"metadata": {"labels": {"app": "bench", "team": "core"}}, "data": data}


def sample_pods(count: int) -> list[dict[str, Any]]:
    """Those that our server has, in its order."""
    cluster = Cluster("bench")
    fill(cluster, objects=LISTED, seed=1, only=["v1/pods"])
    names = cluster.names("v1/pods")[:count]
    return [found for place in names if (found := cluster.get("v1/pods", *place))]


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


async def bench_requests(ours: Server, bare: Server) -> list[Line]:
    pod = sample_pods(1)[0]
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
        found = await rate(ours, calls)
        floor = await rate(bare, _repeated(f"/bytes/{found.size}", "POST", x=1))
        measured = (found.per_second, found.cpu_us, floor.per_second, floor.cpu_us)
        lines.append(Line(f"{name} ({found.size} B)", "/s", *measured, target))
    return lines


# lists ------------------------------------------------------------------------------------------


async def _lists(server: Server, path: str, headers: dict[str, str]) -> tuple[float, float, int]:
    """Median ms of a list, CPU us of the server, bytes received before they are unpacked."""
    times: list[float] = []
    size = 0
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(read_bufsize=2**22, auto_decompress=False) as session:
        before = cpu_seconds(server.pid)
        for _ in range(LISTS):
            begun = time.perf_counter()
            async with session.get(server.url + path, headers=headers, timeout=timeout) as answer:
                size = len(await answer.read())
            times.append((time.perf_counter() - begun) * 1e3)
        busy = cpu_seconds(server.pid) - before
    return statistics.median(times), busy / LISTS * 1e6, size


async def bench_lists(ours: Server, bare: Server) -> list[Line]:
    pods = "/api/v1/pods"
    identity = {"Accept-Encoding": "identity"}
    jobs: list[tuple[str, str, dict[str, str], str]] = [
        (f"list {LISTED} pods", pods, identity, "<= 50"),
        (f"list {LISTED} pods, gzip", pods, {"Accept-Encoding": "gzip"}, ""),
        (f"list {LISTED} pods as a Table", pods, {**identity, "Accept": TABLE}, ""),
        ("list 500 pods, one page", f"{pods}?limit=500", identity, ""),
        (f"list {LISTED} ConfigMaps", "/api/v1/namespaces/default/configmaps", identity, "<= 50"),
    ]
    lines: list[Line] = []
    for name, path, headers, target in jobs:
        await _lists(ours, path, headers)
        p50, cpu, size = await _lists(ours, path, headers)
        floor, floor_cpu, _ = await _lists(bare, f"/bytes/{size}", identity)
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


async def fan_out(server: Server, path: str, writes: Iterable[Call]) -> tuple[float, float]:
    """Events per second that reach all watchers together, CPU us of the server for each."""
    loop = asyncio.get_running_loop()
    port = int(server.url.rpartition(":")[2])
    pairs = [
        await loop.create_connection(lambda: Counter(path), HOST, port) for _ in range(WATCHERS)
    ]
    counters = [counter for _, counter in pairs]
    await asyncio.gather(*(counter.opened for counter in counters))
    begun, before = time.perf_counter(), cpu_seconds(server.pid)
    wanted = (await rate(server, writes)).requests * WATCHERS
    while (seen := sum(counter.count for counter in counters)) < wanted:
        await asyncio.sleep(0.005)
        assert time.perf_counter() < begun + 10 * SECONDS, (seen, wanted)
    elapsed, busy = time.perf_counter() - begun, cpu_seconds(server.pid) - before
    for transport, _ in pairs:
        transport.close()
    return seen / elapsed, busy / seen * 1e6


async def _from_now_on(server: Server, path: str) -> str:
    """The path of a watch that begins with the next change."""
    url = f"{server.url}{path}?limit=1"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        version = (await answer.json())["metadata"]["resourceVersion"]
    return f"{path}?watch=1&resourceVersion={version}"


async def bench_watches(ours: Server, bare: Server) -> list[Line]:
    pod = sample_pods(1)[0]
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    configs = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    jobs: list[tuple[str, int, str, Iterable[Call], str]] = [
        (
            f"events of a ConfigMap to {WATCHERS} watchers",
            900,
            configs,
            _repeated(f"{configs}/configmaps-1", "PATCH", data={"KEY_1": "NUMBER"}),
            ">= 20,000",
        ),
        (
            f"events of a pod to {WATCHERS} watchers",
            5_500,
            pods,
            _repeated(f"{pods}/{name}/status", "PATCH", status={"message": "NUMBER"}),
            ">= 20,000",
        ),
    ]
    lines: list[Line] = []
    for job, size, path, writes, target in jobs:
        per_second, cpu = await fan_out(ours, await _from_now_on(ours, path), writes)
        floor, floor_cpu = await fan_out(bare, "/watch", _repeated(f"/event/{size}", "POST", x=1))
        lines.append(Line(job, "/s", per_second, cpu, floor, floor_cpu, target))
    return lines


# many clusters, many objects --------------------------------------------------------------------


def rss_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def report_starts() -> None:
    """Prints what starting clusters takes."""
    async with serve([Cluster("warm")]):
        pass
    begun = time.perf_counter()
    async with serve([Cluster(name) for name in "abc"]):
        three = time.perf_counter() - begun
    gc.collect()
    begun, before = time.perf_counter(), rss_mb()
    async with serve([Cluster(f"c{n}") for n in range(CLUSTERS)]):
        many, grown = time.perf_counter() - begun, rss_mb() - before
    print(json.dumps({"three": three, "many": many, "grown": grown}), flush=True)


async def report_load() -> None:
    """Prints what loading pods takes."""
    cluster = Cluster("full")
    begun, before = time.perf_counter(), rss_mb()
    fill(cluster, objects=LOADED, seed=1, only=["v1/pods"])
    print(json.dumps({"seconds": time.perf_counter() - begun, "grown": rss_mb() - before}))


async def bench_scale() -> list[Line]:
    async with process("starts") as child:
        starts: dict[str, float] = json.loads(child.url)
    async with process("load") as child:
        load: dict[str, float] = json.loads(child.url)

    def line(job: str, unit: str, value: float, target: str = "") -> Line:
        return Line(job, unit, value, None, None, None, target)

    return [
        line("start of three clusters", "ms", starts["three"] * 1e3, "<= 300"),
        line(f"start of {CLUSTERS} clusters", "ms", starts["many"] * 1e3),
        line("an empty cluster with its listener", "MB", starts["grown"] / CLUSTERS, "<= 2"),
        line(f"{LOADED:,} pods loaded", "s", load["seconds"]),
        line("memory of one of them", "KB", load["grown"] * 1024 / LOADED),
    ]


# the report -------------------------------------------------------------------------------------


async def main(*, as_json: bool) -> None:
    async with process("ours") as ours, process("bare") as bare:
        lines = await bench_lists(ours, bare)
        lines += await bench_requests(ours, bare)
        lines += await bench_watches(ours, bare)
    lines += await bench_scale()
    head = ("job", "ours", "CPU us", "bare", "CPU us", "target")
    print("{:<46}{:>14}{:>10}{:>14}{:>10}{:>12}".format(*head))
    for line in lines:
        cpu, bare_cpu = (_shown(value, "") for value in (line.cpu_us, line.bare_cpu_us))
        measured = (_shown(line.ours, line.unit), cpu, _shown(line.bare, line.unit), bare_cpu)
        print("{:<46}{:>14}{:>10}{:>14}{:>10}{:>12}".format(line.job, *measured, line.target))
    if as_json:
        print(json.dumps([line._asdict() for line in lines]))


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}".strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    roles: dict[str, Callable[[], Any]] = {
        "ours": serve_ours,
        "bare": Bare().run,
        "starts": report_starts,
        "load": report_load,
        "": lambda: main(as_json=given.json),
    }
    uvloop.run(roles[given.role]())
