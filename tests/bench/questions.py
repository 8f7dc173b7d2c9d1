"""Questions to the query API beside a pipeline that changes what they are about.

    python tests/run.py bench.questions [--json]

A real Valkey is filled by the product's writer, which then changes pods at a rate, as a projector
does; the query API is one process, and all figures are CPU of a request in the query API and in
Valkey, over HTTP, without a change (`quiet`) and with them (`live`). Every process is asked some
rounds before it is measured, except for the first question about a field in the life of a process.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.rig.command import run_command
from bench.rig.pod_changes import PodChanges
from bench.rig.processes import cpu_seconds
from bench.rig.query_client import Client, path_of_list, path_of_one
from bench.rig.query_fleet import ApiProcess, SeededStore, query_api, seeded
from fleetbus_emulator.scratch import scratch_folder

_FIELD: Final = "spec.schedulerName=of-nobody"
_LONG: Final = 3600.0
_QUIET: Final = "quiet"
_LIVE: Final = "live"
_SELECTED: Final = "field selector without a match"
_TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
_KUBECTL_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    pods: int = 10_000
    small: int = 2_000
    """Pods of the small fleet."""
    clusters: int = 10
    rate: int = 100
    """Changes per second."""
    seconds: float = 3.0
    """For each question."""
    pause: float = 2.0
    """Seconds between the start of a process and the first question about a field."""
    firsts: int = 3
    """Processes whose first question is measured."""


TINY = Sizes(pods=300, small=60, clusters=3, seconds=0.05, pause=0.1, firsts=1)


@dataclass(frozen=True, slots=True)
class Question:
    """Something that is asked of the API.

    Attributes:
        ask: asks for the nth time.
        rows: that one answer has, if its cost is one of each row.
        pause: seconds before each.
    """

    name: str
    ask: Callable[[Client, int], object]
    rows: int = 1
    pause: float = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the report: milliseconds of each request, or of each row of a table."""

    name: str
    times: int
    p50_ms: float
    api_cpu_ms: float
    store_cpu_ms: float


def make_questions(sizes: Sizes) -> list[Question]:
    """Those of the table, in its order."""

    def get_one(client: Client, number: int) -> object:
        return client.get(path_of_one(number * 7919 % sizes.pods, sizes.clusters))

    def ask(**parameters: Any) -> Callable[[Client, int], object]:
        return lambda client, _: client.get(path_of_list(**parameters))

    kube_path = f"/kube/-/api/v1/pods?limit={_KUBECTL_PAGE}"
    return [
        Question("get one", get_one),
        Question("get one, 20 a second", get_one, pause=0.05),
        Question("list 100", ask(limit=100)),
        Question("list 100, 20 a second", ask(limit=100), pause=0.05),
        Question(_SELECTED, ask(limit=100, fieldSelector=_FIELD)),
        Question("sort by a field", ask(limit=100, sort="spec.nodeName")),
        Question("sort by name", ask(limit=100, sort="metadata.name")),
        Question("row of view=table", ask(view="table"), rows=sizes.pods),
        Question(
            "row of a Table of kubectl",
            lambda client, _: client.get(kube_path, Accept=_TABLE),
            rows=min(_KUBECTL_PAGE, sizes.pods),
        ),
    ]


async def measure_question(
    question: Question, api: ApiProcess, store: SeededStore, sizes: Sizes
) -> Line:
    """Ask again and again, after some rounds that do not count."""

    def run(seconds: float, least: int) -> list[float]:
        times: list[float] = []
        end = time.perf_counter() + seconds
        with Client(api.url) as client:
            while len(times) < least or time.perf_counter() < end:
                time.sleep(question.pause)
                begun = time.perf_counter()
                question.ask(client, len(times))
                times.append((time.perf_counter() - begun) * 1e3)
        return times

    await asyncio.to_thread(run, 0, 2)
    before = cpu_seconds(api.pid), cpu_seconds(store.pid)
    times = await asyncio.to_thread(run, sizes.seconds, 3)
    after = cpu_seconds(api.pid), cpu_seconds(store.pid)
    count = len(times) * question.rows
    spent = [(end - start) * 1e3 / count for start, end in zip(before, after, strict=True)]
    return Line(
        name=question.name,
        times=len(times),
        p50_ms=round(statistics.median(times) / question.rows, 3),
        api_cpu_ms=round(spent[0], 3),
        store_cpu_ms=round(spent[1], 3),
    )


async def measure_first(folder: Path, store: SeededStore, sizes: Sizes) -> Line:
    """The first question about a field in the life of a process, some seconds after its start."""
    times: list[float] = []
    spent: list[tuple[float, float]] = []
    for _ in range(sizes.firsts):
        async with query_api(folder, store.url) as api:
            with Client(api.url) as client:
                await asyncio.to_thread(client.get, path_of_list(limit=1))
            await asyncio.sleep(sizes.pause)
            before = cpu_seconds(api.pid), cpu_seconds(store.pid)
            begun = time.perf_counter()
            with Client(api.url) as client:
                path = path_of_list(limit=100, fieldSelector=_FIELD)
                await asyncio.to_thread(client.get, path)
            times.append((time.perf_counter() - begun) * 1e3)
            spent.append((cpu_seconds(api.pid) - before[0], cpu_seconds(store.pid) - before[1]))
    return Line(
        name="first question about a field",
        times=len(times),
        p50_ms=round(statistics.median(times), 1),
        api_cpu_ms=round(statistics.median(api for api, _ in spent) * 1e3, 1),
        store_cpu_ms=round(statistics.median(valkey for _, valkey in spent) * 1e3, 1),
    )


@asynccontextmanager
async def state(kind: str, store: SeededStore, sizes: Sizes, pods: int) -> AsyncGenerator[None]:
    """Nothing changes meanwhile, or pods do."""
    if kind == _QUIET:
        yield
        return
    changes = PodChanges(store, pods=pods, clusters=sizes.clusters, rate=sizes.rate)
    task = asyncio.create_task(changes.run(_LONG))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def measure_fleet(folder: Path, sizes: Sizes, kind: str) -> list[Line]:
    async with (
        seeded(folder, pods=sizes.pods, clusters=sizes.clusters) as store,
        state(kind, store, sizes, sizes.pods),
    ):
        lines = [await measure_first(folder, store, sizes)]
        async with query_api(folder, store.url) as api:
            for question in make_questions(sizes):
                lines += [await measure_question(question, api, store, sizes)]
        return lines


async def measure_small(folder: Path, sizes: Sizes, kind: str) -> Line:
    """The same field selector in a small fleet."""
    async with (
        seeded(folder, pods=sizes.small, clusters=sizes.clusters) as store,
        state(kind, store, sizes, sizes.small),
        query_api(folder, store.url) as api,
    ):
        question = next(each for each in make_questions(sizes) if each.name == _SELECTED)
        line = await measure_question(question, api, store, sizes)
        return replace(line, name=f"{_SELECTED}, {sizes.small:,} pods")


async def measure(sizes: Sizes) -> dict[str, Any]:
    figures: dict[str, Any] = {"pods": sizes.pods, "rate": sizes.rate}
    for kind in (_QUIET, _LIVE):
        with scratch_folder("bench") as folder:
            lines = await measure_fleet(folder, sizes, kind)
        with scratch_folder("bench") as folder:
            lines.append(await measure_small(folder, sizes, kind))
        figures[kind] = [asdict(line) for line in lines]
    return figures


def show(figures: dict[str, Any]) -> None:
    titles = ("p50", "CPU: API", "store", "times")
    for kind in (_QUIET, _LIVE):
        head = f"{figures['pods']:,} pods, {kind}, ms:"
        print(head.ljust(44) + "".join(f"{title:>12}" for title in titles))
        for line in figures[kind]:
            values = (line["p50_ms"], line["api_cpu_ms"], line["store_cpu_ms"])
            cells = "".join(f"{value:>12,.3f}" for value in values)
            print(line["name"].ljust(44) + cells + f"{line['times']:>12,}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
