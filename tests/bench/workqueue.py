"""The queue on a real Valkey, beside the floors of the same run.

    python tests/run.py bench.workqueue [--json]

Floors: a PING per item, which is what one awaited command costs; and a script that only puts 100
items into one sorted set and takes them out again, which is what any queue in Redis must do.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.rig.command import run_command
from fleetbus.reconcile import Request
from fleetbus.snapshot import connect
from fleetbus.workqueue import Add, Priority, RedisQueue, encode_trigger
from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_emulator.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

PLAIN = """
for i = 1, #ARGV do redis.call('ZADD', KEYS[1], i, ARGV[i]) end
return redis.call('ZPOPMIN', KEYS[1], #ARGV)
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    seconds: float = 1
    """For each line."""
    changes: int = 10_000
    wakes: int = 500
    idle: float = 3
    """Seconds in which a waiting taker is watched."""


TINY = Sizes(seconds=0.01, changes=200, wakes=5, idle=0.1)


def make_adds(count: int, clusters: int) -> list[Add]:
    return [
        Add(
            Request("bench", f"cluster{n % clusters}", f"ns-{n % 20}", f"pod-{n:06d}-7d9c8b6f5"),
            Priority(n % 3),
            encode_trigger(1, str(100_000 + n)),
        )
        for n in range(count)
    ]


async def measure_rate(
    name: str, per_round: int, run: Callable[[], Awaitable[Any]], *, seconds: float
) -> dict[str, Any]:
    """Items per second over about so many seconds, and the client's share of the time."""
    await run()
    gc.collect()
    rounds, started, cpu = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - started) < seconds:
        await run()
        rounds += 1
    items = rounds * per_round
    busy = time.process_time() - cpu
    return {"name": name, "items/s": round(items / elapsed), "client us": busy / items * 1e6}


async def bench_rates(redis: Redis, seconds: float) -> list[dict[str, Any]]:
    rate = partial(measure_rate, seconds=seconds)
    queue = RedisQueue(redis, "bench")
    plain = redis.register_script(PLAIN)
    names = [str(queue_item.request) for queue_item in make_adds(100, 10)]

    async def ping() -> None:
        await redis.ping()

    async def floor() -> None:
        await plain(keys=["floor"], args=names)

    def cycle(adds: list[Add]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await queue.add(adds)
            leases = await queue.take(len(adds))
            assert len(leases) == len(adds)
            assert await queue.done(leases) == []

        return run

    async def deduplicated() -> None:
        await queue.add(additions)

    lines = [
        await rate("floor: PING, await each", 1, ping),
        await rate("floor: plain ZADD + ZPOPMIN, script of 100", 100, floor),
        await rate("add+take+done, one item", 1, cycle(make_adds(1, 1))),
        await rate("add+take+done, 100 items, 1 cluster", 100, cycle(make_adds(100, 1))),
        await rate("add+take+done, 100 items, 50 clusters", 100, cycle(make_adds(100, 50))),
        await rate("add+take+done, 500 items, 50 clusters", 500, cycle(make_adds(500, 50))),
    ]
    additions = make_adds(100, 50)
    await queue.add(additions)
    lines.append(await rate("add of known keys, 100 items", 100, deduplicated))
    assert await queue.done(await queue.take(500)) == []
    assert await redis.keys("*") == []
    return lines


async def bench_one_key(redis: Redis, changes: int) -> list[dict[str, Any]]:
    """Many changes of one key while it is processed are exactly one further run."""
    queue = RedisQueue(redis, "bench")
    request = make_adds(1, 1)[0].request
    await queue.add([Add(request)])
    leases = await queue.take(1)
    started = time.perf_counter()
    for start in range(0, changes, 100):
        triggers = (encode_trigger(1, str(start + n)) for n in range(100))
        await queue.add([Add(request, trigger=trigger) for trigger in triggers])
    elapsed = time.perf_counter() - started
    runs = 0
    while leases:
        assert await queue.done(leases) == []
        leases = await queue.take(10)
        runs += len(leases)
    assert runs == 1
    name = f"{changes} changes of one processed key"
    return [{"name": name, "further runs": runs, "changes/s": round(changes / elapsed)}]


async def bench_wake(redis: Redis, other: Redis, sizes: Sizes) -> list[dict[str, Any]]:
    """From the call of add to the lease in the hands of a taker that waited, over two clients."""
    adder, taker = RedisQueue(redis, "bench"), RedisQueue(other, "bench")
    [add] = make_adds(1, 1)
    delays: list[float] = []
    for _ in range(sizes.wakes):
        waiting = asyncio.create_task(taker.take(10, wait=timedelta(seconds=5)))
        await asyncio.sleep(0.002)
        started = time.perf_counter()
        await adder.add([add])
        leases = await waiting
        delays.append((time.perf_counter() - started) * 1e3)
        await taker.done(leases)
    cpu = time.process_time()
    await taker.take(1, wait=timedelta(seconds=sizes.idle))
    idle = (time.process_time() - cpu) / sizes.idle
    await taker.aclose()
    quantiles = statistics.quantiles(delays, n=100)
    return [
        {"name": "add to take, ms", "p50": quantiles[49], "p99": quantiles[98]},
        {"name": "CPU of one waiting taker, %", "value": idle * 100},
    ]


async def measure(sizes: Sizes) -> list[dict[str, Any]]:
    with scratch_folder("bench") as folder:
        async with valkey_server(dir=folder) as server:
            redis, other = await connect(server.url), await connect(server.url)
            async with redis, other:
                lines = await bench_rates(redis, sizes.seconds)
                lines += await bench_one_key(redis, sizes.changes)
                return lines + await bench_wake(redis, other, sizes)


def show(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        name, *figures = line.items()
        values = "".join(f"{unit} {figure:10,.2f}   " for unit, figure in figures)
        print(f"{name[1]:44}{values.rstrip()}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
