"""The query API over a fleet of pods, beside asking every API server in turn as with kubectl.

    python tests/run.py bench.query [--json]

A real Valkey is filled by the product's writer, the query API is one process, and every figure is
over HTTP. The client does not decode what it gets. `neighbour` is somebody else's GET, one every
four milliseconds, while the line's question is asked again and again. The baseline is the same
client against ten emulated API servers with the same pods, one after the other, in pages of 500 as
kubectl asks; it decodes the pods only where a server cannot answer the question itself.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from bench.rig.command import run_command
from bench.rig.processes import cpu_seconds, peak_mb, process, rss_mb
from bench.rig.query_client import Client, path_of_list, path_of_one, query
from bench.rig.query_fleet import ApiProcess, SeededStore, query_api, seeded
from bench.rig.realistic_pods import PER_APP, name_of, namespace_of
from fleetbus_emulator.scratch import scratch_folder
from support.processes.programs import module

_PAGE: Final = 1000
"""The largest of the query API."""
_KUBECTL_PAGE: Final = 500
_LABEL: Final = "app.kubernetes.io/name"
_NOBODY: Final = "of-nobody"
_FIELD: Final = f"spec.schedulerName={_NOBODY}"
"""No API server selects by this one."""
_SORTED: Final = "spec.nodeName"
_SORT: Final = "sort by a field"
_OK: Final = 200
_COLD: Final = 3
Ask: TypeAlias = Callable[[Client, int], int]
"""Asks a question for the nth time; answers how many bytes came."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    pods: int = 100_000
    clusters: int = 10
    listed: int = 10_000
    """In the list that is read in chunks."""
    gets: int = 2_000
    seconds: float = 5.0
    """For each other question, and again beside the neighbour."""
    baseline: int = 1
    """0 leaves the emulated API servers out, which take 3 GB."""


TINY = Sizes(pods=300, clusters=3, listed=250, gets=5, seconds=0.05)


@dataclass(frozen=True, slots=True)
class Question:
    """Something that is asked, of the API and of the API servers."""

    name: str
    target_ms: float
    ask: Ask
    ask_servers: Callable[[Sequence[Client], int], int]


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the report; milliseconds, CPU included."""

    name: str
    target_ms: float
    times: int
    p50_ms: float
    p99_ms: float
    first_ms: float
    """Time of the first query: what is kept for later is built."""
    kb: float
    api_cpu_ms: float
    store_cpu_ms: float
    neighbour_p50_ms: float = 0
    neighbour_p99_ms: float = 0
    baseline_p50_ms: float | None = None


# --- the questions ----------------------------------------------------------------------------


def make_questions(sizes: Sizes) -> list[Question]:
    """Those of the table, in its order."""
    apps = sizes.pods // PER_APP

    def by_label(number: int) -> str:
        return query(labelSelector=f"{_LABEL}=app-{number * 31 % apps}")

    def get_one(client: Client, number: int) -> int:
        return len(client.get(path_of_one(number * 7919 % sizes.pods, sizes.clusters)))

    def list_hundred(client: Client, _: int) -> int:
        return len(client.get(path_of_list(limit=100)))

    def list_many(client: Client, _: int) -> int:
        return _read_until(client, path_of_list(limit=_PAGE), -(-sizes.listed // _PAGE))

    def list_app(client: Client, number: int) -> int:
        body = client.get(path_of_list(limit=_KUBECTL_PAGE) + "&" + by_label(number))
        assert body.count(b'"cluster":') == PER_APP, "the label selects an application's pods"
        return len(body)

    def find_nothing(client: Client, _: int) -> int:
        return sum(map(len, client.pages(path_of_list(limit=100, fieldSelector=_FIELD))))

    def sort_all(client: Client, _: int) -> int:
        return len(client.get(path_of_list(limit=100, sort=_SORTED)))

    loop = _Loop(sizes)
    return [
        Question("get one", 2, get_one, loop.get_one),
        Question("list 100", 10, list_hundred, loop.list_hundred),
        Question(f"list {sizes.listed:,} in chunks", 600, list_many, loop.list_many),
        Question(
            f"{PER_APP} by a label",
            20,
            list_app,
            lambda servers, number: loop.list_all(servers, "&" + by_label(number)),
        ),
        Question("field selector without a match", 300, find_nothing, loop.match_all),
        Question(_SORT, 2000, sort_all, loop.sort_all),
    ]


def _read_until(client: Client, path: str, most: int) -> int:
    size = 0
    for number, body in enumerate(client.pages(path), start=1):
        size += len(body)
        if number == most:
            break
    return size


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    scheduler_name: str = ""


class _Pod(msgspec.Struct):
    spec: _Spec


class _PodList(msgspec.Struct):
    items: list[_Pod]


class _Loop:
    """The same questions, of one API server after the other."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._decoder = msgspec.json.Decoder(_PodList)

    def get_one(self, servers: Sequence[Client], number: int) -> int:
        index = number * 7919 % self._sizes.pods
        path = f"/api/v1/namespaces/{namespace_of(index)}/pods/{name_of(index)}"
        return len(servers[index % len(servers)].get(path))

    def list_hundred(self, servers: Sequence[Client], _: int) -> int:
        """All in the first cluster, as in the answer of the query API."""
        return len(servers[0].get("/api/v1/pods?limit=100"))

    def list_many(self, servers: Sequence[Client], _: int) -> int:
        """In as few clusters as have so many."""
        size, left = 0, -(-self._sizes.listed // _KUBECTL_PAGE)
        for server in servers:
            for body in server.pages(f"/api/v1/pods?limit={_KUBECTL_PAGE}"):
                size += len(body)
                left -= 1
                if not left:
                    return size
        return size

    def list_all(self, servers: Sequence[Client], selector: str = "") -> int:
        path = f"/api/v1/pods?limit={_KUBECTL_PAGE}{selector}"
        return sum(len(body) for server in servers for body in server.pages(path))

    def match_all(self, servers: Sequence[Client], _: int) -> int:
        return sum(pod.spec.scheduler_name == _NOBODY for pod in self._decode_all(servers))

    def sort_all(self, servers: Sequence[Client], _: int) -> int:
        return len(sorted(self._decode_all(servers), key=lambda pod: pod.spec.node_name))

    def _decode_all(self, servers: Sequence[Client]) -> list[_Pod]:
        path = f"/api/v1/pods?limit={_KUBECTL_PAGE}"
        pods: list[_Pod] = []
        for server in servers:
            for body in server.pages(path):
                pods += self._decoder.decode(body).items
        return pods


# --- measuring --------------------------------------------------------------------------------


def time_rounds(
    ask: Callable[[int], int], *, seconds: float, least: int = 3, most: int = 10**9
) -> tuple[list[float], int]:
    """Ask for so long; milliseconds of each time, and bytes of the last."""
    times: list[float] = []
    end, size = time.perf_counter() + seconds, 0
    while len(times) < most and (len(times) < least or time.perf_counter() < end):
        begun = time.perf_counter()
        size = ask(len(times))
        times.append((time.perf_counter() - begun) * 1e3)
    return times, size


def percentile(times: Sequence[float], share: float) -> float:
    """Return a percentile of at least one value."""
    ordered = sorted(times)
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 2)


class Neighbour:
    """Somebody who gets objects in the meantime."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child

    async def stop(self) -> list[float]:
        """Milliseconds of each GET."""
        self._child.terminate()
        out, _ = await self._child.communicate()
        return json.loads(out)


@asynccontextmanager
async def neighbour(api: ApiProcess, sizes: Sizes) -> AsyncGenerator[Neighbour]:
    words = (str(sizes.pods), str(sizes.clusters), api.url)
    async with process(module("bench.programs.neighbour", *words)) as child:
        assert child.stdout is not None
        await child.stdout.readline()  # it has started
        yield Neighbour(child)


async def ask_for(
    question: Question, api: ApiProcess, seconds: float, most: int = 10**9
) -> tuple[list[float], int]:
    """Ask on a connection of its own: an idle one is closed after some seconds."""

    def run() -> tuple[list[float], int]:
        with Client(api.url) as client:
            return time_rounds(
                lambda number: question.ask(client, number), seconds=seconds, most=most
            )

    return await asyncio.to_thread(run)


async def measure_question(
    question: Question, api: ApiProcess, store: SeededStore, sizes: Sizes
) -> Line:
    """Alone, then beside a neighbour."""
    first, _ = await ask_for(question, api, 0, most=1)
    before = cpu_seconds(api.pid), cpu_seconds(store.pid)
    times, size = await ask_for(question, api, sizes.seconds, sizes.gets)
    api_cpu = (cpu_seconds(api.pid) - before[0]) * 1e3 / len(times)
    store_cpu = (cpu_seconds(store.pid) - before[1]) * 1e3 / len(times)
    async with neighbour(api, sizes) as other:
        await ask_for(question, api, sizes.seconds)
        waits = await other.stop()
    return Line(
        name=question.name,
        target_ms=question.target_ms,
        times=len(times),
        p50_ms=round(statistics.median(times), 2),
        p99_ms=percentile(times, 0.99),
        first_ms=round(first[0], 1),
        kb=round(size / 1e3, 1),
        api_cpu_ms=round(api_cpu, 2),
        store_cpu_ms=round(store_cpu, 2),
        neighbour_p50_ms=percentile(waits, 0.5),
        neighbour_p99_ms=percentile(waits, 0.99),
    )


async def measure_alone(api: ApiProcess, sizes: Sizes) -> dict[str, float]:
    """The neighbour, while nobody else asks."""
    async with neighbour(api, sizes) as other:
        await asyncio.sleep(sizes.seconds)
        waits = await other.stop()
    return {"p50_ms": percentile(waits, 0.5), "p99_ms": percentile(waits, 0.99)}


async def measure_api(folder: Path, sizes: Sizes) -> dict[str, Any]:
    begun = time.perf_counter()
    async with seeded(folder, pods=sizes.pods, clusters=sizes.clusters) as store:
        seconds = time.perf_counter() - begun
        async with query_api(folder, store.url) as api:
            can_sort = _can_sort(api)
            idle = rss_mb(api.pid)
            alone = await measure_alone(api, sizes)
            lines = [
                await measure_question(question, api, store, sizes)
                for question in make_questions(sizes)
                if question.name != _SORT or can_sort
            ]
            memory = {"idle_mb": idle, "rss_mb": rss_mb(api.pid), "peak_mb": peak_mb(api.pid)}
        cold = [await measure_cold(folder, store, sizes) for _ in range(_COLD)]
    return {
        "seed_seconds": round(seconds, 1),
        "store_mb": round(store.bytes / 1e6),
        "api": {name: round(value, 1) for name, value in memory.items()},
        "neighbour_alone": alone,
        "cold": {
            name: round(statistics.median(run_seconds[name] for run_seconds in cold), 1)
            for name in cold[0]
        },
        "lines": lines,
    }


async def measure_cold(folder: Path, store: SeededStore, sizes: Sizes) -> dict[str, float]:
    """The first question about a field in the life of a process, which reads every object."""
    async with query_api(folder, store.url) as api, neighbour(api, sizes) as other:
        with Client(api.url) as client:
            begun, cpu = time.perf_counter(), cpu_seconds(api.pid)
            await asyncio.to_thread(client.get, path_of_list(limit=100, fieldSelector=_FIELD))
            seconds, cpu = time.perf_counter() - begun, cpu_seconds(api.pid) - cpu
        waits = await other.stop()
        return {
            "ms": seconds * 1e3,
            "api_cpu_ms": cpu * 1e3,
            "neighbour_p50_ms": percentile(waits, 0.5),
            "neighbour_p99_ms": percentile(waits, 0.99),
            "peak_mb": peak_mb(api.pid),
        }


def _can_sort(api: ApiProcess) -> bool:
    with Client(api.url) as client:
        return client.ask(path_of_list(limit=1, sort=_SORTED))[0] == _OK


async def measure_servers(sizes: Sizes) -> dict[str, float]:
    """The p50 of each question, in ms, by its name."""
    words = (str(sizes.pods), str(sizes.clusters))
    medians: dict[str, float] = {}
    async with (
        process(module("bench.programs.pod_servers", *words)) as child,
        AsyncExitStack() as client_stack,
    ):
        assert child.stdout is not None
        urls = json.loads(await child.stdout.readline())
        clients = [client_stack.enter_context(Client(url)) for url in urls]
        for question in make_questions(sizes):
            times, _ = await asyncio.to_thread(
                time_rounds,
                lambda number, ask=question.ask_servers: ask(clients, number),
                seconds=sizes.seconds,
                least=1,
                most=sizes.gets,
            )
            medians[question.name] = round(statistics.median(times), 1)
    return medians


async def measure(sizes: Sizes) -> dict[str, Any]:
    with scratch_folder("bench") as folder:
        figures = await measure_api(folder, sizes)
    baseline = await measure_servers(sizes) if sizes.baseline else {}
    lines = [replace(line, baseline_p50_ms=baseline.get(line.name)) for line in figures["lines"]]
    return {"pods": sizes.pods, **figures, "lines": [asdict(line) for line in lines]}


def show(figures: dict[str, Any]) -> None:
    titles = (
        "p50",
        "target",
        "p99",
        "CPU: API",
        "store",
        "KB",
        "neighbour p50",
        "p99",
        "one by one",
    )
    print(f"{figures['pods']:,} pods, ms:".ljust(32) + "".join(f"{each:>14}" for each in titles))
    for line in figures["lines"]:
        named = ("p50", "target", "p99", "first", "api_cpu", "store_cpu", "kb")
        values = [line[name if name == "kb" else f"{name}_ms"] for name in named]
        values += [line["neighbour_p50_ms"], line["neighbour_p99_ms"], line["baseline_p50_ms"]]
        cells = ["" if value is None else f"{value:,.2f}" for value in values]
        print(line["name"].ljust(32) + "".join(f"{each:>14}" for each in cells))
    alone, api = figures["neighbour_alone"], figures["api"]
    print(f"the neighbour alone: p50 {alone['p50_ms']} ms, p99 {alone['p99_ms']} ms; <= 20 ms")
    cold = figures["cold"]
    print(
        f"first question about a field: {cold['ms']:,.0f} ms, CPU {cold['api_cpu_ms']:,.0f} ms,"
        f" neighbour p50 {cold['neighbour_p50_ms']} ms, p99 {cold['neighbour_p99_ms']} ms,"
        f" API {cold['peak_mb']} MB at its peak"
    )
    print(
        f"memory: Valkey {figures['store_mb']} MB (<= 1,000),"
        f" API {api['idle_mb']} MB idle, {api['rss_mb']} MB at the end,"
        f" {api['peak_mb']} MB at its peak (<= 200)"
    )


if __name__ == "__main__":
    run_command(measure, show, TINY)
