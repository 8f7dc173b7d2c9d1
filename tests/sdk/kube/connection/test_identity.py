"""Only the accepted cluster is believed (W13), and under one name only (D5)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis as RedisClient

from fleetbus import errors
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import NotAccepted, Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.snapshot.accepted import AcceptedClusters
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus_emulator.apiserver import Abort, Cluster, Delay, Fail, serve
from fleetbus_proto.keys import SnapshotKeys
from support.hostile.redirected_address import shared_address
from support.objects import config_map

if TYPE_CHECKING:
    from redis.asyncio import Redis

MAPS = "v1/configmaps"
KUBE_SYSTEM = "/api/v1/namespaces/kube-system"


class Clock:
    """The time of the client's trust, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1e-6  # no two moments are the same
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(
        "fleetbus.kube.connection.identity.time", SimpleNamespace(monotonic=fake_clock)
    )
    return fake_clock


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("eu1")


class Fixed:
    """Accepts one UID."""

    def __init__(self, accepted: str) -> None:
        self._accepted = accepted

    async def uid(self, name: str) -> str:
        assert name == "eu1"
        return self._accepted

    async def aliases(self, name: str) -> tuple[str, ...]:
        raise AssertionError(name)


@asynccontextmanager
async def engaged(
    config: KubeConfig, accepted: str, recorded: str = ""
) -> AsyncGenerator[KubeClient]:
    """The client of the registry for a cluster whose accepted UID is this one.

    Args:
        config: access to it.
        accepted: the UID; empty where the store has none.
        recorded: the UID that the hub has on record.
    """
    info = ClusterInfo(name="eu1", hub=True, provider="test", config=config, uid=recorded)
    clusters = Clusters([], hub=info)
    clusters.verify_identities(Fixed(accepted))
    try:
        yield clusters.client("eu1")
    finally:
        await clusters.aclose()


@asynccontextmanager
async def client_of(
    cluster: Cluster, accepted: str | None = None, recorded: str = ""
) -> AsyncGenerator[KubeClient]:
    async with serve([cluster]) as servers:
        config = KubeConfig(json.dumps(servers.kubeconfig()), context=cluster.name)
        uid = cluster.uid if accepted is None else accepted
        async with engaged(config, uid, recorded) as client:
            yield client


def looks(cluster: Cluster) -> int:
    return sum(request.path == KUBE_SYSTEM for request in cluster.requests)


# --- another cluster answers --------------------------------------------------------------------


async def test_w13_what_another_cluster_lacks_is_not_absent_and_nothing_is_written_there(
    cluster: Cluster,
):
    async with client_of(cluster) as client:
        assert await client.get(MAPS, "default", "a") is None
        cluster.swap_uid()
        for absence in (
            client.get(MAPS, "default", "a"),
            client.list(MAPS),
            client.has_any("v1/secrets"),
            client.delete(MAPS, "default", "a", uid="u"),
            client.discovery.refresh(),
        ):
            with pytest.raises(NotAccepted, match="another cluster answers") as refused:
                await absence
            assert refused.value.cluster == "eu1"
        with pytest.raises(NotAccepted, match="fleetbus clusters accept eu1 --uid"):
            await client.create(MAPS, config_map("a"))
    assert cluster.get(MAPS, "default", "a") is None


async def test_w13_an_object_of_another_cluster_is_not_ours(cluster: Cluster, clock: Clock):
    cluster.create(MAPS, config_map("a"), "default")
    async with client_of(cluster) as client:
        assert await client.get(MAPS, "default", "a")
        cluster.swap_uid()
        clock.now += 3
        with pytest.raises(NotAccepted):
            await client.get(MAPS, "default", "a")


async def test_w13_the_accepted_cluster_is_believed_again(cluster: Cluster):
    uid = cluster.uid
    async with client_of(cluster) as client:
        cluster.swap_uid()
        with pytest.raises(NotAccepted):
            await client.get(MAPS, "default", "a")
        cluster.swap_uid(uid)
        assert await client.create(MAPS, config_map("a"))


async def test_w13_a_new_connection_is_not_believed_before_somebody_looked_behind_it():
    async with shared_address() as address, engaged(address.config, address.right.uid) as client:
        for one in (address.right, address.wrong):
            one.create(MAPS, config_map("a"), "default")
        assert await client.get(MAPS, "default", "a")
        await address.lead_elsewhere()
        with contextlib.suppress(errors.KubeError):  # of the connection that broke
            await client.get_json("/version")
        with pytest.raises(NotAccepted):
            await client.get(MAPS, "default", "a")


async def test_w13_nothing_is_sent_through_a_connection_that_leads_to_another_cluster():
    async with shared_address() as address, engaged(address.config, address.right.uid) as client:
        assert await client.get(MAPS, "default", "a") is None
        address.lead_new_connections_elsewhere()
        written = await asyncio.gather(
            *(client.create(MAPS, config_map(f"a{n}")) for n in range(10)), return_exceptions=True
        )
        assert any(isinstance(outcome, NotAccepted) for outcome in written)
    sent = [request for request in address.wrong.requests if request.path != KUBE_SYSTEM]
    assert sent == []


async def test_w13_an_old_connection_does_not_vouch_for_a_new_one():
    async with shared_address() as address, engaged(address.config, address.right.uid) as client:
        address.right.create(MAPS, config_map("a"), "default")
        assert await client.get(MAPS, "default", "a")
        address.lead_new_connections_elsewhere()
        late = timedelta(seconds=0.2)
        address.right.faults.add(Delay(late / 2), resource="configmaps", name="a")
        address.wrong.faults.add(Delay(late), resource="configmaps", name="a")
        # The second needs a connection of its own, and looks when the old one is free again.
        answers = await asyncio.gather(
            *(client.get(MAPS, "default", "a") for _ in range(2)), return_exceptions=True
        )
    assert [type(answer) for answer in answers] == [dict, NotAccepted]


# --- nobody knows which cluster it is -----------------------------------------------------------


async def test_w13_before_a_watcher_reported_the_first_cluster_that_answers_counts(
    cluster: Cluster,
):
    async with client_of(cluster, accepted="") as client:
        assert await client.get(MAPS, "default", "a") is None
        cluster.swap_uid()
        with pytest.raises(NotAccepted):
            await client.get(MAPS, "default", "a")
        with pytest.raises(NotAccepted):
            await client.create(MAPS, config_map("a"))


async def test_w13_a_store_that_lost_everything_leaves_the_uid_on_record_in_the_hub(
    cluster: Cluster,
):
    uid = cluster.uid
    async with client_of(cluster, accepted="", recorded=uid) as client:
        cluster.swap_uid()
        for absence in (
            client.get(MAPS, "default", "a"),
            client.list(MAPS),
            client.delete(MAPS, "default", "a"),
        ):
            with pytest.raises(NotAccepted, match=f"not the accepted {uid}"):
                await absence
        cluster.swap_uid(uid)
        assert await client.get(MAPS, "default", "a") is None


async def test_w13_what_is_accepted_counts_before_what_the_hub_has_on_record(cluster: Cluster):
    before = cluster.uid
    cluster.swap_uid()  # it was built anew, and somebody consented
    async with client_of(cluster, recorded=before) as client:
        assert await client.get(MAPS, "default", "a") is None


async def test_w13_s7_where_kube_system_may_not_be_read_the_missing_right_is_named(
    cluster: Cluster,
):
    cluster.faults.add(Fail(403), resource="namespaces", name="kube-system")
    async with client_of(cluster) as client:
        with pytest.raises(NotAccepted, match="get on namespace kube-system is needed"):
            await client.get(MAPS, "default", "a")
        with pytest.raises(NotAccepted):
            await client.create(MAPS, config_map("a"))
    assert cluster.get(MAPS, "default", "a") is None


async def test_w13_a_look_that_fails_is_one_for_all_who_waited_for_it(cluster: Cluster):
    cluster.faults.add(Abort(), resource="namespaces", name="kube-system")
    async with client_of(cluster) as client:
        answers = await asyncio.gather(
            *(client.get(MAPS, "default", "a") for _ in range(20)), return_exceptions=True
        )
    assert {type(answer) for answer in answers} == {Unreachable}
    assert len(cluster.requests) <= 3


# --- what it costs ------------------------------------------------------------------------------


async def test_w13_reads_of_what_is_there_cost_one_look(cluster: Cluster, clock: Clock):
    cluster.create(MAPS, config_map("a"), "default")
    async with client_of(cluster) as client:
        for _ in range(50):
            assert await client.get(MAPS, "default", "a")
        assert looks(cluster) <= 2  # before the first connection, and behind it
        before = looks(cluster)
        clock.now += 3
        assert await client.get(MAPS, "default", "a")
    assert looks(cluster) == before + 1


async def test_w13_absences_found_at_the_same_time_share_their_looks(cluster: Cluster):
    async with client_of(cluster) as client:
        await client.get(MAPS, "default", "a")
        before = looks(cluster)
        answers = await asyncio.gather(*(client.get(MAPS, "default", f"a{n}") for n in range(40)))
    assert answers == [None] * 40
    assert looks(cluster) - before <= 20


# --- which cluster is accepted ------------------------------------------------------------------


async def records(redis: Redis, *, reported: str = "", **uids: str) -> AcceptedClusters:
    """Records of clusters that were accepted one after another; only a watcher has reported
    `reported`."""
    writer = SnapshotWriter(redis, SnapshotKeys())
    for number, (name, uid) in enumerate(uids.items(), 1):
        record = ClusterRecord(
            name=name,
            uid=uid,
            uid_since=number,
            uid_verified=name != reported,
            incarnation=100 - number,  # a watcher chooses it
            hub=name == "hub",
        )
        await writer.put_cluster(name, record)
    return AcceptedClusters(SnapshotReader(redis, SnapshotKeys()))


async def test_w13_the_accepted_uid_is_the_one_of_the_record(redis: Redis):
    accepted = await records(redis, eu1="u1", us1="")
    assert [await accepted.uid(name) for name in ("eu1", "us1", "new")] == ["u1", "", ""]


async def test_w13_clusters_that_are_looked_up_together_cost_one_reading_of_the_records(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
):
    names = [f"c{number}" for number in range(20)]
    accepted = await records(redis, **{name: f"uid-of-{name}" for name in names})
    really, readings = SnapshotReader.available_clusters, 0

    async def counted(reader: SnapshotReader) -> Any:
        nonlocal readings
        readings += 1
        return await really(reader)

    monkeypatch.setattr(SnapshotReader, "available_clusters", counted)
    uids = await asyncio.gather(*map(accepted.uid, names))
    assert uids == [f"uid-of-{name}" for name in names]
    assert readings == 1


async def test_d5_the_second_name_of_a_cluster_counts_as_not_engaged(redis: Redis):
    accepted = await records(redis, zoo="u1", eu1="u1", us1="u2")
    assert await accepted.uid("zoo") == "u1"  # the older name, though not the first by letters
    with pytest.raises(NotAccepted, match="already in the fleet as 'zoo'"):
        await accepted.uid("eu1")
    assert await accepted.uid("us1") == "u2"
    assert [await accepted.aliases(name) for name in ("zoo", "eu1", "us1")] == [
        ("eu1",),
        ("zoo",),
        (),
    ]


@pytest.mark.parametrize("order", [("eu1", "new"), ("new", "eu1"), ("hub", "new")])
async def test_d5_what_a_watcher_reported_does_a_verified_name_no_harm(
    redis: Redis, order: tuple[str, str]
):
    accepted = await records(redis, reported="new", **dict.fromkeys(order, "u1"))
    (verified,) = set(order) - {"new"}
    assert await accepted.uid(verified) == "u1"
    assert await accepted.aliases(verified) == ()
    assert await accepted.aliases("new") == (verified,)
    with pytest.raises(NotAccepted):
        await accepted.uid("new")


async def test_d5_the_hub_is_never_the_second_name(redis: Redis):
    accepted = await records(redis, kind="u1", hub="u1")
    assert await accepted.uid("hub") == "u1"
    with pytest.raises(NotAccepted):
        await accepted.uid("kind")


@pytest.mark.slow
async def test_w13_while_the_store_is_away_nobody_is_believed(tmp_path: pathlib.Path):
    redis = RedisClient(unix_socket_path=str(tmp_path / "nobody"))
    try:
        with pytest.raises(NotAccepted, match="the store does not answer"):
            await AcceptedClusters(SnapshotReader(redis, SnapshotKeys())).uid("eu1")
    finally:
        await redis.aclose()
