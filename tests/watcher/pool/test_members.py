"""Members of the pool, each with everything that is real but the process: rule W22."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from prometheus_client import REGISTRY

from fleetbus.bus.connection import subscribed
from fleetbus.bus.jetstream import ensure_bucket
from fleetbus.bus.key_value import KeyValue
from fleetbus.watchers.spec import WatchSpec, encode_spec
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_emulator.apiserver import Expire, Fail, Hang
from fleetbus_proto.keys import KV_BUCKET, kv_watch_spec
from fleetbus_watcher.cluster_watcher import ClusterWatcher
from fleetbus_watcher.pool.assignment import assign
from support.eventually import eventually, never
from support.full import examples
from support.rigs.pool import LEASE, PoolRig, pool_rig
from support.servers.health_probes import read_probe

NAMES = [f"c{number}" for number in range(6)]
FAILING = "c0"


@pytest.fixture
async def rig(nats_url: str, tmp_path: Path) -> AsyncGenerator[PoolRig]:
    """Six clusters in the fleet, and no member yet."""
    async with pool_rig(nats_url, tmp_path, *NAMES) as opened:
        opened.join(*NAMES)
        yield opened


def series_of(cluster: str) -> set[str]:
    """The metrics that have this cluster as their label."""
    return {
        sample.name
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.labels.get("cluster") == cluster
    }


def moves() -> float:
    families = (f for f in REGISTRY.collect() if f.name == "fleetbus_watcher_pool_moves")
    return sum(s.value for f in families for s in f.samples if s.name.endswith("_total"))


# --- members ----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_w22_members_share_the_clusters_and_hand_them_over_under_load(rig: PoolRig):
    """Joins and leaves: one list each, always a watch open, nothing lost, nothing stored twice."""
    rig.start("r-0")
    await rig.shared("r-0")
    await eventually(rig.have_checkpoints)
    rig.start("r-1")
    async with churning(rig) as gaps:
        owners = await rig.shared("r-0", "r-1")
        assert max(list(owners.values()).count(m) for m in ("r-0", "r-1")) == 3
        await rig.stop("r-0")
        await rig.shared("r-1")
    await eventually(rig.are_mirrored)
    assert gaps == []
    assert await rig.repeated() == []
    assert {name: rig.lists(name) for name in NAMES} == dict.fromkeys(NAMES, 1)


class churning:  # noqa: N801 -- it reads as what happens meanwhile
    """Changes in every cluster, all the time; yields the clusters that nobody watched once."""

    def __init__(self, rig: PoolRig) -> None:
        self._rig = rig
        self._gaps: list[str] = []

    async def __aenter__(self) -> list[str]:
        self._task = asyncio.create_task(self._churn())
        return self._gaps

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _churn(self) -> None:
        rig, turn = self._rig, 0
        while True:
            for name in NAMES:
                rig.write(name, f"a{turn % 3}", str(turn))
                self._gaps += [name] if rig.clusters[name].open_watches == 0 else []
            if turn % 3 == 2:
                rig.remove(NAMES[turn % len(NAMES)], "a1")
            turn += 1
            await asyncio.sleep(0.005)  # the pace of the load


async def test_w22_members_that_stop_together_wait_for_nobody(rig: PoolRig):
    rig.start("r-0")
    rig.start("r-1")
    await rig.shared("r-0", "r-1")
    async with asyncio.timeout(10):  # half of what a hand-over is waited for
        await rig.stop()
    await eventually(lambda: all(rig.clusters[name].open_watches == 0 for name in NAMES))


async def test_w22_a_member_that_comes_back_under_its_name_goes_on_with_its_leases(rig: PoolRig):
    rig.start("r-0")
    await rig.shared("r-0")
    await eventually(rig.have_checkpoints)
    await rig.stop()
    rig.write("c1", "a")
    before = moves()
    rig.start("r-0")
    await rig.shared("r-0")
    await eventually(lambda: rig.are_mirrored("c1"))
    assert (moves(), rig.lists("c1")) == (before, 1)


# --- clusters ---------------------------------------------------------------------------------


async def test_w22_clusters_join_leave_and_change_access_without_a_restart(rig: PoolRig):
    """T8: nothing else is watched anew, and nothing is left of a cluster that went."""
    others = series_of("c0")  # other tests of this process may have had a cluster of that name
    rig.leave("c5")
    rig.start("r-0")
    await rig.shared("r-0", clusters=NAMES[:5])
    await eventually(lambda: rig.have_checkpoints(*NAMES[:5]))
    assert series_of("c0")
    opened = {name: rig.watches_opened(name) for name in NAMES}
    rig.join("c5")
    rig.change("c1", metadata={"annotations": {"note": "nothing to do with access"}})
    rig.write("c2", "a")
    rig.change("c1", data=rig.kubeconfig("c1", preferences={"colors": True}))  # no access either
    rig.change("c2", data=rig.kubeconfig("c2", token="another"))
    rig.write("c2", "b")
    await rig.shared("r-0")
    rig.leave("c0")
    await rig.shared("r-0", clusters=NAMES[1:])
    await eventually(lambda: rig.are_mirrored("c2"))
    await eventually(lambda: series_of("c0") <= others)
    assert await eventually(lambda: rig.clusters["c0"].open_watches == 0)
    assert await eventually(lambda: rig.watches_opened("c2") > opened["c2"])
    anew = [name for name in NAMES if rig.watches_opened(name) != opened[name]]
    assert anew == ["c2", "c5"]
    assert rig.lists("c2") == 1
    assert series_of("c1")


async def test_w22_a_cluster_with_a_watcher_of_its_own_is_not_the_pools(rig: PoolRig):
    rig.change("c3", metadata={"labels": {"fleetbus.dev/watcher": "dedicated"}})
    rig.start("r-0")
    others = [name for name in NAMES if name != "c3"]
    await rig.shared("r-0", clusters=others)
    assert rig.clusters["c3"].open_watches == 0
    rig.change("c3", metadata={"labels": {"fleetbus.dev/watcher": None}})
    await rig.shared("r-0")
    rig.change("c4", metadata={"labels": {"fleetbus.dev/watcher": "dedicated"}})
    await rig.shared("r-0", clusters=[name for name in NAMES if name != "c4"])
    assert await eventually(lambda: rig.clusters["c4"].open_watches == 0)


async def test_w22_pools_with_other_selectors_run_side_by_side(rig: PoolRig):
    for name in NAMES[:2]:
        rig.change(name, metadata={"labels": {"region": "eu"}})
    rig.start("r-0", selector="region=eu")
    rig.start("r-1", selector="region!=eu")
    owners = await rig.shared("r-0", "r-1")
    assert {name for name, member in owners.items() if member == "r-0"} == set(NAMES[:2])


# --- what goes wrong --------------------------------------------------------------------------


async def test_w22_a_bad_cluster_harms_no_other_and_not_the_process(
    rig: PoolRig, monkeypatch: pytest.MonkeyPatch
):
    """One brings a bug to light, one hangs at its list, one refuses connections."""
    crashing = _let_crash(monkeypatch, FAILING)
    rig.clusters["c1"].faults.add(Hang(), verb="list", resource="configmaps")
    await rig.servers.stop("c2")
    rig.start("r-0")
    healthy = NAMES[3:]
    await eventually(lambda: rig.are_watched_once(*healthy))
    for name in healthy:
        rig.write(name, "a")
    await eventually(lambda: rig.are_mirrored(*healthy))
    await eventually(lambda: crashing() > 2)  # again and again, after pauses
    assert rig.is_running("r-0")
    monkeypatch.undo()
    rig.write(FAILING, "a")
    await eventually(lambda: rig.are_mirrored(FAILING))


@pytest.mark.slow
async def test_w22_a_cluster_whose_token_is_refused_holds_up_no_member(rig: PoolRig):
    """Neither its readiness, for which a rollout would wait, nor its leave."""
    rig.clusters["c1"].faults.add(Fail(401))
    port = rig.start("r-0", hand_over=timedelta(minutes=1))
    others = [name for name in NAMES if name != "c1"]
    await eventually(lambda: rig.are_watched_once(*others))
    await eventually(lambda: _is_ready(port))
    await eventually(lambda: _owns(rig, "r-0", len(NAMES)))
    rig.start("r-1")
    async with asyncio.timeout(30):
        await rig.stop("r-0")
    await eventually(lambda: _owns(rig, "r-1", len(NAMES)))


async def _is_ready(port: Path) -> bool:
    return (await read_probe(port, "/readyz"))[0] == 200


async def _owns(rig: PoolRig, member: str, count: int) -> bool:
    return list((await rig.owners()).values()).count(member) == count


def _let_crash(monkeypatch: pytest.MonkeyPatch, cluster: str) -> Callable[[], int]:
    """Put a bug into the work for one cluster; answers how often it struck."""
    struck: list[str] = []

    class Buggy(ClusterWatcher):
        async def run(self) -> None:
            if self._settings.cluster == cluster:
                struck.append(cluster)
                raise ZeroDivisionError
            await super().run()

    monkeypatch.setattr("fleetbus_watcher.main.ClusterWatcher", Buggy)
    return lambda: len(struck)


@pytest.mark.slow
async def test_w22_nats_away_for_longer_than_a_lease_moves_nothing(tmp_path: Path):
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        pool_rig(server.url, tmp_path, *NAMES) as rig,
    ):
        rig.join(*NAMES)
        rig.start("r-0")
        rig.start("r-1")
        owners = await rig.shared("r-0", "r-1")
        before = moves()
        await server.stop()
        rig.write("c1", "a")
        await asyncio.sleep(2 * LEASE.total_seconds())  # the leases run out
        await server.restart()
        await rig.bus.wait_connected()
        await eventually(rig.are_mirrored)
        assert await rig.shared("r-0", "r-1") == owners
        assert moves() == before
        await rig.stop()


@pytest.mark.slow
async def test_w22_a_bucket_that_was_lost_moves_nothing(rig: PoolRig):
    rig.start("r-0")
    rig.start("r-1")
    owners = await rig.shared("r-0", "r-1")
    await rig.bus.request(f"$JS.API.STREAM.DELETE.KV_{KV_BUCKET}")
    await ensure_bucket(rig.bus)
    assert await rig.shared("r-0", "r-1") == owners


async def test_w21_w22_a_member_stops_although_its_final_heartbeat_fails(
    rig: PoolRig, monkeypatch: pytest.MonkeyPatch
):
    fails = asyncio.Event()

    class Buggy(ClusterWatcher):
        async def check_incarnation(self) -> None:
            if fails.is_set():
                raise ZeroDivisionError
            await super().check_incarnation()

    monkeypatch.setattr("fleetbus_watcher.main.ClusterWatcher", Buggy)
    rig.start("r-0")
    await rig.shared("r-0")
    await eventually(rig.have_checkpoints)
    fails.set()
    async with asyncio.timeout(10):
        await rig.stop("r-0")


@pytest.mark.slow
async def test_w22_what_its_owner_does_not_take_another_takes(rig: PoolRig):
    """One member does not see clusters that join: its hub is not that of the other."""
    joining = [name for name, member in assign(NAMES, ["r-0", "r-1"]).items() if member == "r-0"]
    others = [name for name in NAMES if name not in joining]
    for name in joining:
        rig.leave(name)
    rig.join(*others, hub="elsewhere")
    rig.start("r-0", hub="elsewhere")
    rig.start("r-1")
    await rig.shared("r-0", "r-1", clusters=others)
    rig.join(*joining)
    await eventually(lambda: _are_owned_by("r-1", rig, joining))
    await eventually(rig.are_watched_once)


async def _are_owned_by(member: str, rig: PoolRig, names: list[str]) -> bool:
    owners = await rig.owners()
    return {owners.get(name) for name in names} == {member}


@pytest.mark.slow
async def test_w22_suspended_clusters_change_hands_as_fast_as_others(
    rig: PoolRig,
):
    rig.timing = replace(rig.timing, unwatchable=timedelta(minutes=1))
    owners = assign(NAMES, ["r-0", "r-1"])
    [name, *_] = [name for name, member in owners.items() if member == "r-1"]
    suspended = encode_spec(WatchSpec(suspended=True))
    await KeyValue(rig.bus).put(kv_watch_spec(name), suspended)
    rig.start("r-0")
    await eventually(lambda: _are_owned_by("r-0", rig, NAMES))
    rig.start("r-1")
    await eventually(lambda: _are_owned_by("r-1", rig, [name]))
    assert rig.watches_opened(name) == 0


# --- names --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_w22_a_member_at_rest_reads_the_leases_once_in_the_time_of_a_lease(rig: PoolRig):
    """There is one for each cluster, and each write of one is announced."""
    requests: list[bytes] = []

    async def note(message: Msg) -> None:
        if b"_pool.lease" in message.data:
            requests.append(message.data)

    rig.start("r-0")
    await rig.shared("r-0")
    async with subscribed(rig.bus, f"$JS.API.DIRECT.GET.KV_{KV_BUCKET}", note):
        # A member reads them at each turn until the last claim is a while ago.
        await asyncio.sleep(LEASE.total_seconds())
        requests.clear()
        await never(lambda: len(requests) > 4, during=3 * LEASE)
    assert requests


@pytest.mark.slow
async def test_w9_changes_of_one_cluster_do_not_hasten_the_heartbeats_of_another(rig: PoolRig):
    """All clusters of a member share a window, but not what is in flight there."""
    beats: Counter[str] = Counter()

    async def note(message: Msg) -> None:
        beats[message.subject.split(".")[2]] += 1

    rig.start("r-0")
    await rig.shared("r-0")
    await eventually(rig.have_checkpoints)
    async with subscribed(rig.bus, "fleetbus.status.>", note):
        await eventually(lambda: is_quiet(beats))
        before = beats["c1"]

        def write() -> bool:
            rig.write("c0", "busy", str(time.monotonic()))
            return beats["c1"] > before + 1

        await never(write, during=timedelta(seconds=1.5))
    assert beats["c0"] > 3


async def is_quiet(beats: Counter[str]) -> bool:
    """Whether no cluster has a reason to send heartbeats for a while."""
    before = beats.total()
    await asyncio.sleep(0.5)  # five times the pause of busy heartbeats
    return beats.total() == before


@pytest.mark.slow
async def test_w25_members_with_one_name_become_two_members(rig: PoolRig):
    before = _losses()
    rig.start("r-0")
    await rig.shared("r-0")
    first = rig.forget("r-0")
    rig.start("r-0")
    owners = await eventually(lambda: _two_owners(rig), timedelta(seconds=20))
    assert "r-0" in owners
    assert max(owners, key=len).startswith("r-0-")
    for name in NAMES:
        rig.write(name, "a")
    await eventually(rig.are_mirrored)
    assert await rig.repeated() == []
    assert _losses() == before
    first.cancel()  # the other takes over whatever this one had
    await asyncio.gather(first, return_exceptions=True)
    await eventually(lambda: _one_owner(rig), timedelta(seconds=20))


@pytest.mark.longer
async def test_w25_a_pool_and_a_watcher_of_one_cluster_may_have_one_name(rig: PoolRig):
    """On one host, as docs/devfleet.md and `fleetbus join` print the commands."""
    before = _losses()
    rig.start("host")
    await rig.shared("host")
    async with rig.watching("c1", "host"):
        for number in range(examples(20)):
            rig.write("c1", "a", str(number))
            rig.clusters["c1"].faults.add(Expire("stream"), verb="watch", count=2)
            await eventually(lambda: rig.are_mirrored("c1"))
    assert _losses() == before


def _losses() -> float:
    families = (f for f in REGISTRY.collect() if f.name == "fleetbus_watcher_alarms")
    alarms = (s for f in families for s in f.samples if s.name.endswith("_total"))
    return sum(s.value for s in alarms if s.labels["alarm"] == "events_lost")


async def _two_owners(rig: PoolRig) -> set[str]:
    owners = set((await rig.owners()).values())
    return owners if len(owners) == 2 and rig.are_watched_once(*NAMES) else set()


async def _one_owner(rig: PoolRig) -> bool:
    owners = await rig.owners()
    return len(set(owners.values())) == 1 and rig.are_watched_once(*NAMES)
