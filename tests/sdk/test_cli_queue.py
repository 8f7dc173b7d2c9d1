"""`fleetbus queue` as a person calls it, on a real store."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from commands import status_of
from redis.asyncio import Redis
from workqueue_rig import RedisRig, named

from fleetbus.cli.app import app
from fleetbus.cli.main import main
from fleetbus.workqueue import Add, Backoff, Priority, QueuePolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fleetbus.workqueue import Queue

    Call = Callable[..., tuple[int, str, str]]

MINUTE = timedelta(minutes=1)
POLICY = QueuePolicy(  # nothing becomes due meanwhile
    backoff=Backoff(MINUTE, 1, MINUTE), breaker_pause=Backoff(MINUTE, 1, MINUTE)
)


class Desk:
    """A store with one queue, and the command; each has a loop of its own."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._redis = Redis.from_url(url)
        self.do(self._redis.flushdb())
        self.rig = RedisRig(self._redis, "copier", POLICY)

    def do(self, what: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await what

        return self._runner.run(wait())

    def close(self) -> None:
        self.do(self.rig.queue.aclose())
        self.do(self._redis.aclose())
        self._runner.close()


@pytest.fixture
def desk(valkey_url: str) -> Iterator[Desk]:
    desk = Desk(valkey_url)
    yield desk
    desk.close()


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], valkey_url: str
) -> Call:
    """The command: exit status, output, error."""
    monkeypatch.setattr(app, "registered_groups", [])
    monkeypatch.setenv("FLEETBUS_REDIS_URL", valkey_url)

    def call_one(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fleetbus", "queue", *arguments])
        status = status_of(main)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call_one


async def quarantine(rig: RedisRig, *names: str) -> None:
    queue = rig.queue
    await queue.add([Add(named(name, cluster="bad")) for name in names])
    for _ in range(POLICY.reclaims):
        assert len(await queue.take(10)) == len(names)
        await rig.advance(POLICY.lease * 1.1)
        await queue.reap()
        await rig.advance(POLICY.lease / 5)
        await queue.reap()


async def fill(rig: RedisRig) -> None:
    """A bit of everything."""
    queue = rig.queue
    await quarantine(rig, "deadly")
    await queue.add([Add(named(f"n{n}", cluster="dead")) for n in range(POLICY.breaker + 1)])
    leases = await queue.take(POLICY.breaker)
    for lease in leases:
        await queue.retry(lease, unreachable=True)
    await queue.done(leases)
    await queue.add([Add(named("held"))])
    await queue.take(1)
    await queue.add([Add(named("a")), Add(named("b"), Priority.INITIAL)])
    await queue.add_after(named("later"), timedelta(hours=1))


def test_it_shows_what_waits_what_is_worked_on_and_what_is_kept_back(desk: Desk, call: Call):
    desk.do(fill(desk.rig))
    status, out, err = call()
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "copier: 3 ready, 6 delayed, 1 processing, 1 in quarantine"
    assert "copier bad 0 0 0 - 1 closed" in lines
    assert "copier c1 1 0 1 0s 0 closed" in lines
    assert any(one.startswith("copier dead 1 0 0 0s 0 open after 5 failures") for one in lines)
    worker = f"{socket.gethostname()}-{os.getpid()}"
    assert f"copier c1 ns held {worker} 14s left" in lines
    assert any(one.startswith("copier bad ns deadly 1 in 5") for one in lines)


def test_the_same_as_json(desk: Desk, call: Call):
    desk.do(fill(desk.rig))
    status, out, _ = call("copier", "-o", "json")
    assert status == 0
    [shown] = json.loads(out)
    assert {name: shown[name] for name in ("ready", "delayed", "processing", "quarantined")} == {
        "ready": 3,
        "delayed": 6,
        "processing": 1,
        "quarantined": 1,
    }
    clusters = {one["cluster"]: one for one in shown["clusters"]}
    assert clusters.keys() == {"bad", "c1", "dead"}
    assert (clusters["c1"]["live"], clusters["c1"]["initial"]) == (1, 1)
    assert clusters["c1"]["breaker"] is None
    assert clusters["dead"]["breaker"]["failures"] == POLICY.breaker
    [held] = shown["processingItems"]
    assert held["name"] == "held"
    assert 10 < held["leaseSeconds"] <= 15
    [kept] = shown["quarantinedItems"]
    assert (kept["name"], kept["times"]) == ("deadly", 1)


def test_q7_an_item_is_released_by_its_name_and_all_by_all(desk: Desk, call: Call):
    desk.do(quarantine(desk.rig, "a", "b", "c"))
    status, out, _ = call("release", "copier", "bad/ns/a")
    assert (status, out) == (0, "released cluster://bad/ns/a\n")
    status, _, err = call("release", "copier", "bad/ns/a")
    assert (status, err) == (1, "fleetbus: cluster://bad/ns/a is not in quarantine\n")
    status, out, _ = call("release", "copier", "--all")
    assert (status, out) == (0, "released 2 items\n")
    assert desk.do(names(desk.rig.queue)) == ["a", "b", "c"]


async def names(queue: Queue) -> list[str]:
    return sorted(lease.request.name for lease in await queue.take(10))


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["nosuch"], 1, "no controller 'nosuch' has a queue here; there are copier"),
        (["release", "nosuch", "--all"], 1, "no controller 'nosuch' has a queue here"),
        (["release"], 2, "say what to release"),
        (["release", "copier"], 2, "say what to release"),
        (["release", "copier", "c1/ns/a", "--all"], 2, "say what to release"),
        (["release", "copier", "c1/a"], 2, "'c1/a' is not CLUSTER/NAMESPACE/NAME"),
        (["copier", "c1/ns/a"], 2, "'c1/ns/a' belongs to `fleetbus queue release CONTROLLER`"),
        (["--all"], 2, "--all belongs to `fleetbus queue release CONTROLLER`"),
        (["-o", "yaml"], 2, "--output 'yaml' is not one of table, json"),
        (["--redis-url", "redis://127.0.0.1:1"], 1, "does not answer"),
    ],
)
def test_a_mistake_is_one_line(
    desk: Desk, call: Call, arguments: list[str], status: int, said: str
):
    desk.do(desk.rig.queue.add([Add(named("a"))]))
    ended, out, err = call(*arguments)
    assert (ended, out) == (status, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("desk")
def test_a_store_without_queues_is_said_to_have_none(call: Call):
    assert call()[:2] == (0, "No controller has a queue here.\n")
    status, _, err = call("copier")
    assert (status, err.count("there is none at all")) == (1, 1)
