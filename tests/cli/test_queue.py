"""`fleetbus queue` as a person calls it, on a real store."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.asyncio import Redis

from fleetbus.controller.controller import Controller
from fleetbus.intake.last_runs import LastRuns, describe_run
from fleetbus.reconcile import Outcome
from fleetbus.snapshot.records import ClusterRecord
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.workqueue import Add, Backoff, Priority, QueuePolicy
from fleetbus.workqueue.redis import RedisQueue
from fleetbus.workqueue.scripts import Ending
from fleetbus_cli.app import app
from fleetbus_cli.main import main
from fleetbus_proto.keys import SnapshotKeys
from support.processes.in_process_commands import status_of
from support.rows import each_row
from support.stores.workqueue import RedisRig, named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

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
        self.redis = Redis.from_url(url)
        self.do(self.redis.flushdb())
        self.rig = RedisRig(self.redis, "copier", POLICY)

    def do(self, awaitable: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await awaitable

        return self._runner.run(wait())

    async def contents(self) -> dict[bytes, bytes | None]:
        """All keys of the queue; liveness and clock are the time of the last look."""
        scan: AsyncIterator[bytes] = cast("Any", self.redis).scan_iter()
        keys = [key async for key in scan if not key.endswith((b":liveness", b":clock"))]
        return {key: await cast("Any", self.redis).dump(key) for key in keys}

    def close(self) -> None:
        self.do(self.rig.queue.aclose())
        self.do(self.redis.aclose())
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
    assert any(line.startswith("copier dead 1 0 0 0s 0 open after 5 failures") for line in lines)
    worker = f"{socket.gethostname()}-{os.getpid()}"
    assert f"copier c1 ns held {worker} 14s left" in lines
    assert any(line.startswith("copier bad ns deadly 1 in 5") for line in lines)


def test_the_same_as_json(desk: Desk, call: Call):
    desk.do(fill(desk.rig))
    status, out, _ = call("copier", "-o", "json")
    assert status == 0
    [queue_view] = json.loads(out)
    assert {
        name: queue_view[name] for name in ("ready", "delayed", "processing", "quarantined")
    } == {
        "ready": 3,
        "delayed": 6,
        "processing": 1,
        "quarantined": 1,
    }
    clusters = {cluster["cluster"]: cluster for cluster in queue_view["clusters"]}
    assert clusters.keys() == {"bad", "c1", "dead"}
    assert (clusters["c1"]["live"], clusters["c1"]["initial"]) == (1, 1)
    assert clusters["c1"]["breaker"] is None
    assert clusters["dead"]["breaker"]["failures"] == POLICY.breaker
    [processing] = queue_view["processingItems"]
    assert processing["name"] == "held"
    assert 10 < processing["leaseSeconds"] <= 15
    [quarantined] = queue_view["quarantinedItems"]
    assert (quarantined["name"], quarantined["times"]) == ("deadly", 1)


async def fail_one(rig: RedisRig, redis: Redis) -> None:
    """A bit of everything, and one run that failed."""
    await fill(rig)
    queue = rig.queue
    await queue.add([Add(named("failing"))])
    leases = {lease.request.name: lease for lease in await queue.take(10, probes=0)}
    failed = leases.pop("failing")
    await queue.retry(failed)
    error = ValueError("login failed: password=hunter2")
    ended = describe_run(Controller("copier"), failed, Outcome.RETRIED, error, 3.0)
    runs = LastRuns(redis, "copier").rows([ended])
    await RedisQueue(redis, "copier").done_recorded(Ending([failed], runs=runs))
    await queue.give_back(list(leases.values()))


def test_the_items_of_one_controller_are_listed_with_their_last_errors(desk: Desk, call: Call):
    desk.do(fail_one(desk.rig, desk.redis))
    status, out, err = call("copier")
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    items = lines[lines.index("STATE CLUSTER NAMESPACE NAME WHEN FAILURES LAST ERROR") + 1 :]
    assert [line.split()[0] for line in items] == [
        "processing",
        *["ready"] * 2,
        "blocked",
        *["delayed"] * 7,
        "quarantined",
    ]
    assert items[0] == f"processing c1 ns held by {socket.gethostname()}-{os.getpid()} 0 -"
    assert items[1:3] == ["ready c1 ns a for 0s (live) 0 -", "ready c1 ns b for 0s (initial) 0 -"]
    [failed] = [line for line in items if "failing" in line]
    assert failed.startswith(
        "delayed c1 ns failing in 59s 1 ValueError: login failed: password=***"
    )
    assert items[-1].startswith("quarantined bad ns deadly in 5")
    assert "later in 59m" in items[-2]
    assert "`fleetbus queue CONTROLLER` lists the items" in call()[1]


def test_the_items_are_bounded_for_each_state_and_the_rest_is_counted(desk: Desk, call: Call):
    adds = [Add(named(f"n{n}", cluster=f"c{n % 3}")) for n in range(30)]
    desk.do(desk.rig.queue.add([*adds, Add(named("urgent"))]))
    desk.do(desk.rig.queue.add_after(named("later"), timedelta(hours=1)))
    status, out, _ = call("copier", "-o", "json")
    [queue_view] = json.loads(out)
    assert status == 0
    assert [item["name"] for item in queue_view["items"]] == [
        *(f"n{n}" for n in range(20)),
        "later",
    ]
    assert queue_view["itemsNotShown"]["ready"] == 11
    [first, *_, last] = queue_view["items"]
    assert (first["state"], first["priority"], first["failures"]) == ("ready", "live", 0)
    assert 3590 < last["remainingSeconds"] <= 3600
    assert (last["lastError"], last["lastEndedAt"]) == ("", None)
    _, out, _ = call("copier", "--limit", "2")
    assert "… and 29 ready: `--limit` shows up to 500 of each state" in out
    _, out, _ = call("copier", "--limit", "500")
    assert "urgent" in out
    assert "… and" not in out


def test_q2_listing_the_items_changes_nothing_in_the_store(desk: Desk, call: Call):
    desk.do(fail_one(desk.rig, desk.redis))
    before = desk.do(desk.contents())
    assert call("copier")[0] == 0
    assert desk.do(desk.contents()) == before


def test_q7_what_waits_after_failures_is_retried_now(desk: Desk, call: Call):
    desk.do(fill(desk.rig))
    assert desk.do(names(desk.rig.queue)) == ["a", "b"]
    status, out, _ = call("retry", "copier")
    assert (status, out) == (0, "due now: 6 items\n")
    # Those of the silent cluster are ready, and wait for it; what asked to run later is left alone.
    assert desk.do(names(desk.rig.queue)) == ["deadly"]
    stats = desk.do(desk.rig.queue.stats())
    assert sum(count for (cluster, _), count in stats.depth.items() if cluster == "dead") == 6
    assert (stats.delayed, stats.failing, stats.quarantined) == (1, 5, 0)
    assert call("retry", "copier")[1] == "nothing to retry: 6 items are due already\n"


def test_q7_one_item_is_retried_now_whatever_it_waits_for(desk: Desk, call: Call):
    desk.do(fill(desk.rig))
    desk.do(names(desk.rig.queue))
    for name in ("c1/ns/later", "bad/ns/deadly"):
        status, out, _ = call("retry", "copier", name)
        assert (status, out) == (0, f"due now: cluster://{name}\n")
    assert sorted(desk.do(names(desk.rig.queue))) == ["deadly", "later"]
    status, _, err = call("retry", "copier", "c1/ns/later")
    assert (status, err) == (
        1,
        "fleetbus: cluster://c1/ns/later is neither delayed nor in quarantine\n",
    )


def test_q7_an_item_is_released_by_its_name_and_all_by_all(desk: Desk, call: Call):
    desk.do(quarantine(desk.rig, "a", "b", "c"))
    status, out, _ = call("release", "copier", "bad/ns/a")
    assert (status, out) == (0, "released cluster://bad/ns/a\n")
    status, _, err = call("release", "copier", "bad/ns/a")
    assert (status, err) == (1, "fleetbus: cluster://bad/ns/a is not in quarantine\n")
    status, out, _ = call("release", "copier", "--all")
    assert (status, out) == (0, "released 2 items\n")
    assert desk.do(names(desk.rig.queue)) == ["a", "b", "c"]


@pytest.mark.parametrize("action", ["retry", "release"])
def test_an_item_of_a_cluster_that_is_not_in_the_fleet_is_reported(
    desk: Desk, call: Call, action: str
):
    desk.do(fill(desk.rig))
    desk.do(
        SnapshotWriter(desk.redis, SnapshotKeys()).put_cluster(
            "eu1", ClusterRecord(name="eu1", uid="u")
        )
    )
    status, _, err = call(action, "copier", "eu7/ns/a")
    message = "fleetbus: cluster 'eu7' is not in the fleet; did you mean 'eu1'?\n"
    assert (status, err) == (1, message)


async def names(queue: Queue) -> list[str]:
    return sorted(lease.request.name for lease in await queue.take(10))


@each_row(
    ("arguments", "status", "message"),
    [
        (["nosuch"], 1, "controller 'nosuch' has no queue; known: copier"),
        (["release", "nosuch", "--all"], 1, "controller 'nosuch' has no queue"),
        (["retry"], 2, "nothing to retry"),
        (["retry", "nosuch"], 1, "controller 'nosuch' has no queue"),
        (["retry", "copier", "--all"], 2, "nothing to retry"),
        (["release"], 2, "nothing to release"),
        (["release", "copier"], 2, "nothing to release"),
        (["release", "copier", "c1/ns/a", "--all"], 2, "nothing to release"),
        (["release", "copier", "c1/a"], 2, "'c1/a' is not CLUSTER/NAMESPACE/NAME"),
        (
            ["copier", "c1/ns/a"],
            2,
            "'c1/ns/a' is only valid with `fleetbus queue release CONTROLLER`",
        ),
        (["--all"], 2, "--all is only valid with `fleetbus queue release CONTROLLER`"),
        (["--limit", "5"], 2, "--limit is only valid with `fleetbus queue CONTROLLER`"),
        (["release", "copier", "--all", "--limit", "5"], 2, "--limit is only valid with"),
        (["copier", "--limit", "9999"], 2, "--limit 9999 is not between 1 and 500"),
        (["-o", "yaml"], 2, "--output 'yaml' is not one of table, json"),
        (["--redis-url", "redis://127.0.0.1:1"], 1, "does not answer"),
    ],
)
def test_a_mistake_is_one_line(
    desk: Desk, call: Call, arguments: list[str], status: int, message: str
):
    desk.do(desk.rig.queue.add([Add(named("a"))]))
    ended, out, err = call(*arguments)
    assert (ended, out) == (status, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("desk")
def test_a_store_without_queues_is_said_to_have_none(call: Call):
    assert call()[:2] == (0, "No controller has a queue.\n")
    status, _, err = call("copier")
    assert (status, err.count("known: none")) == (1, 1)


def test_due_items_that_no_worker_takes_are_said_to_need_one(
    desk: Desk, call: Call, monkeypatch: pytest.MonkeyPatch
):
    assert desk.do(desk.rig.queue.add([Add(named(name)) for name in "ab"])) is None
    hint = "is a worker of copier running?"
    assert call("retry", "copier")[1] == f"nothing to retry: 2 items are due already: {hint}\n"
    assert hint not in call("copier")[1], "a worker takes a moment"
    monkeypatch.setattr("fleetbus_cli.queue.show.LONG_WAIT", timedelta())
    assert f"\n\nItems are due and none runs: {hint}\n" in call("copier")[1]
    desk.do(desk.rig.queue.take(2))
    assert hint not in call("copier")[1]
    assert call("retry", "copier")[:2] == (0, "nothing to retry\n")


def test_a_store_that_accepts_and_never_answers_is_given_up_soon(
    call: Call, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus_cli.store.PATIENCE", timedelta(seconds=0.3))
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"redis://127.0.0.1:{hanging.getsockname()[1]}"
        before = time.monotonic()
        status, _, err = call("--redis-url", address)
    assert time.monotonic() - before < 10, "the services wait for 30 s"
    assert (status, err.count("\n")) == (1, 1)
    assert f"Redis at {address} does not answer" in err
