"""P17: the status of Cluster objects tells what the snapshot knows, and only when it changes."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import yaml
from msgspec.structs import replace
from prometheus_client import REGISTRY
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.snapshot.records import AgentContact, ClusterRecord, ResourceRecord, ResourceState
from fleetbus_emulator.apiserver import Cluster, Fail, serve
from fleetbus_reconciler.fleet_status.cluster_status import ClusterStatus, cluster_status
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_watcher.settings import WatcherSettings
from support.rows import each_row
from support.stores.snapshot import Snapshot

CRD = pathlib.Path(__file__).parents[2] / "charts" / "fleetbus" / "files" / "crds" / "clusters.yaml"
CLUSTERS = "fleetbus.dev/v1alpha1/clusters"


def now() -> str:
    return datetime.now(UTC).isoformat()


def conditions_of(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def pods(state: ResourceState) -> ResourceRecord:
    return ResourceRecord(group="core", version="v1", plural="pods", state=state)


REPORTED = ClusterRecord(name="eu1", connected=True, server_version="v1.33.1", reported_at=now())


@each_row(
    ("record", "resources", "is_silent", "expected"),
    [
        (
            replace(REPORTED, agent=AgentContact(reason="AgentNotConnected", message="none is")),
            [pods(ResourceState.SYNCED)],
            False,
            {
                "Connected": ("True", "Connected"),
                "Synced": ("True", "AllListed"),
                "Stale": ("False", "Reported"),
                "AgentConnected": ("False", "AgentNotConnected"),
            },
        ),
        (
            REPORTED,
            [pods(ResourceState.SYNCED)],
            False,
            {
                "Connected": ("True", "Connected"),
                "Synced": ("True", "AllListed"),
                "Stale": ("False", "Reported"),
            },
        ),
        (
            REPORTED,
            [pods(ResourceState.LISTING)],
            False,
            {
                "Connected": ("True", "Connected"),
                "Synced": ("False", "NotListed"),
                "Stale": ("False", "Reported"),
            },
        ),
        (
            REPORTED,
            [pods(ResourceState.DEGRADED)],
            False,
            {
                "Connected": ("True", "Connected"),
                "Synced": ("False", "Degraded"),
                "Stale": ("False", "Reported"),
            },
        ),
        (
            REPORTED,
            [pods(ResourceState.STALE)],
            True,
            {
                "Connected": ("False", "WatcherSilent"),
                "Synced": ("True", "AllListed"),
                "Stale": ("True", "NotReported"),
            },
        ),
        (
            ClusterRecord(name="eu1"),
            [],
            False,
            {
                "Connected": ("False", "NoHeartbeat"),
                "Synced": ("False", "NotListed"),
                "Stale": ("False", "Reported"),
            },
        ),
        (
            ClusterRecord(name="eu1", reason="Unreachable", message="refused", reported_at=now()),
            [pods(ResourceState.STALE)],
            False,
            {
                "Connected": ("False", "Unreachable"),
                "Synced": ("True", "AllListed"),
                "Stale": ("True", "NotReported"),
            },
        ),
        (
            ClusterRecord(name="c", reason="Suspended", reported_at=now()),
            [pods(ResourceState.STALE)],
            True,
            {
                "Connected": ("False", "Suspended"),
                "Synced": ("True", "AllListed"),
                "Stale": ("True", "Suspended"),
            },
        ),
        (
            ClusterRecord(name="c", connected=True, reported_at=now(), invalid=["'po ds': no"]),
            [pods(ResourceState.SYNCED)],
            False,
            {
                "Connected": ("True", "Connected"),
                "Synced": ("False", "InvalidResources"),
                "Stale": ("False", "Reported"),
            },
        ),
    ],
)
def test_p17_conditions_follow_what_was_reported(
    record: ClusterRecord,
    resources: list[ResourceRecord],
    is_silent: bool,
    expected: dict[str, tuple[str, str]],
) -> None:
    assert conditions_of(cluster_status(record, resources, is_silent)) == expected


def test_an_invalid_entry_is_shown_also_while_another_is_not_listed() -> None:
    record = ClusterRecord(name="c", connected=True, reported_at=now(), invalid=["'po ds': no"])
    conditions = cluster_status(record, [pods(ResourceState.LISTING)], False)["conditions"]
    (synced,) = [condition for condition in conditions if condition["type"] == "Synced"]
    assert synced["message"] == "not listed completely yet: pods; not watched: 'po ds': no"


def aliases(name: str) -> float | None:
    return REGISTRY.get_sample_value("fleetbus_cluster_aliases", {"cluster": name})


async def test_t8_two_names_for_one_cluster_are_shown_on_both_until_one_is_gone(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    async with hub_with_a_cluster(redis, tmp_path) as (hub, make_status):
        writer = Snapshot(redis).writer
        status = make_status()
        await writer.put_cluster("hub", ClusterRecord(name="hub", uid="u", uid_verified=True))
        await writer.put_cluster("eu1", ClusterRecord(name="eu1", uid="u", uid_verified=True))
        await writer.put_cluster("new", ClusterRecord(name="new"))
        with capture_logs() as logs:
            await status.write_all()
            await status.write_all()
        seen = [(line["cluster"], line["others"]) for line in logs]
        assert sorted(seen) == [("eu1", ("hub",)), ("hub", ("eu1",))]
        assert [aliases(name) for name in ("hub", "eu1", "new")] == [1, 1, 0]
        cluster = hub.get(CLUSTERS, None, "hub")
        assert cluster is not None
        assert conditions_of(cluster["status"])["Aliased"] == ("True", "SameCluster")
        assert "eu1" in cluster["status"]["conditions"][-1]["message"]

        await writer.removal.drop_cluster("eu1")
        await status.write_all()
        cluster = hub.get(CLUSTERS, None, "hub")
        assert cluster is not None
        assert conditions_of(cluster["status"]).keys() == {"Connected", "Synced", "Stale"}
        assert [aliases(name) for name in ("hub", "eu1", "new")] == [0, None, 0]


async def test_w13_a_store_that_lost_everything_takes_no_uid_off_the_hub(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    async with hub_with_a_cluster(redis, tmp_path) as (hub, make_status):
        status = make_status()
        uids: list[str] = []
        for uid in ("u1", "", "u2"):
            await Snapshot(redis).writer.put_cluster("hub", ClusterRecord(name="hub", uid=uid))
            await status.write_all()
            uids.append((hub.get(CLUSTERS, None, "hub") or {})["status"]["uid"])
        assert uids == ["u1", "u1", "u2"]


@asynccontextmanager
async def hub_with_a_cluster(
    redis: Redis, folder: pathlib.Path, *, shards: int = 1
) -> AsyncGenerator[tuple[Cluster, Callable[[], ClusterStatus]]]:
    hub = Cluster("hub")
    hub.create("apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(CRD.read_text()))
    reference = {"namespace": "fleetbus-clusters", "name": "hub"}
    spec = {"kubeconfigSecretRef": reference}
    hub.create(
        CLUSTERS,
        {
            "apiVersion": "fleetbus.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": "hub"},
            "spec": spec,
        },
    )
    async with serve([hub]) as servers:
        path = folder / "kubeconfig"
        servers.write_kubeconfig(path)
        info = ClusterInfo(name="hub", hub=True, provider="cluster", config=read_kube_config(path))
        clusters = Clusters([], hub=info)
        snapshot = Snapshot(redis, shards=shards)
        await snapshot.set_up("hub")
        try:
            yield (
                hub,
                lambda: ClusterStatus(
                    clusters=clusters,
                    reader=snapshot.reader,
                    stale_after=timedelta(seconds=90),
                    interval=timedelta(seconds=1),
                ),
            )
        finally:
            await clusters.aclose()


def writes(hub: Cluster) -> int:
    return sum(1 for logged in hub.requests if logged.verb == "patch")


async def test_p16_a_cluster_whose_shard_is_away_says_so_until_that_is_back(
    redis: Redis, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hub_with_a_cluster(redis, tmp_path, shards=4) as (hub, make_status):
        snapshot, status, is_away = Snapshot(redis, shards=4), make_status(), True
        await snapshot.writer.put_cluster(
            "hub", ClusterRecord(name="hub", connected=True, reported_at=now())
        )
        await snapshot.writer.put_resource_state("hub", pods(ResourceState.SYNCED))
        await status.write_all()
        lost = snapshot.keys.clusters(snapshot.keys.shard_of("hub"))
        execute = cast("Any", redis.execute_command)

        async def failing(*args: Any, **options: Any) -> Any:
            if is_away and lost in args:
                raise RedisConnectionError("its server is away")
            return await execute(*args, **options)

        monkeypatch.setattr(redis, "execute_command", failing)
        before = writes(hub)
        hub.faults.add(Fail(403), verb="patch", resource="clusters", count=1)
        for _ in range(3):  # the first is refused, which may not keep others from being written
            await status.write_all()
        cluster = hub.get(CLUSTERS, None, "hub")
        assert cluster is not None
        conditions = conditions_of(cluster["status"])
        assert conditions["Synced"] == ("False", "StoreAway")
        assert conditions["Connected"] == ("True", "Connected"), "as it was"
        assert writes(hub) == before + 1, "written once"
        is_away = False
        await status.write_all()
        cluster = hub.get(CLUSTERS, None, "hub")
        assert cluster is not None
        assert conditions_of(cluster["status"])["Synced"] == ("True", "AllListed")


async def test_p17_a_change_is_written_once_and_an_idle_fleet_sees_no_write(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    async with hub_with_a_cluster(redis, tmp_path) as (hub, make_status):
        writer = Snapshot(redis).writer
        status = make_status()
        await writer.put_cluster(
            "hub", ClusterRecord(name="hub", connected=True, reported_at=now())
        )
        await writer.put_resource_state("hub", pods(ResourceState.SYNCED))
        await status.write_all()
        cluster = hub.get(CLUSTERS, None, "hub")
        assert cluster is not None
        assert conditions_of(cluster["status"])["Synced"] == ("True", "AllListed")
        assert cluster["status"]["objects"] == 0
        assert writes(hub) == 1
        since = {c["type"]: c["lastTransitionTime"] for c in cluster["status"]["conditions"]}

        await writer.put_cluster(
            "hub", ClusterRecord(name="hub", connected=True, reported_at=now())
        )
        for _ in range(3):
            await status.write_all()
        assert writes(hub) == 1  # a later heartbeat alone is no reason

        await writer.put_cluster(
            "hub", ClusterRecord(name="hub", reason="Unreachable", reported_at=now())
        )
        await status.write_all()
        changed = hub.get(CLUSTERS, None, "hub")
        assert changed is not None
        assert conditions_of(changed["status"])["Connected"] == ("False", "Unreachable")
        times = {c["type"]: c["lastTransitionTime"] for c in changed["status"]["conditions"]}
        assert times["Synced"] == since["Synced"]
        assert writes(hub) == 2


async def test_p17_last_answer_is_when_an_api_server_that_is_silent_last_answered(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    async with hub_with_a_cluster(redis, tmp_path) as (hub, make_status):
        writer, status = Snapshot(redis).writer, make_status()
        record = ClusterRecord(name="hub", connected=True, reported_at=now(), last_answer=now())
        await writer.put_cluster("hub", record)
        await status.write_all()
        assert "lastAnswer" not in status_of(hub)  # it would have to be written all the time

        silent = replace(record, connected=False, reason="Unreachable", reported_at=now())
        await writer.put_cluster("hub", silent)
        await status.write_all()
        assert status_of(hub)["lastAnswer"] == record.last_answer

        await writer.put_cluster("hub", record)
        await status.write_all()
        assert "lastAnswer" not in status_of(hub)


def status_of(hub: Cluster) -> dict[str, Any]:
    cluster = hub.get(CLUSTERS, None, "hub")
    assert cluster is not None
    return cluster["status"]


async def test_p17_what_an_api_server_reports_is_shown_while_it_is_connected(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    async with hub_with_a_cluster(redis, tmp_path) as (hub, make_status):
        record = replace(
            REPORTED,
            name="hub",
            reason="NotReady",
            message="/readyz: failed: etcd",
            reported_at=now(),  # the module was imported minutes ago
        )
        await Snapshot(redis).writer.put_cluster("hub", record)
        await make_status().write_all()
        assert conditions_of(status_of(hub))["Connected"] == ("True", "NotReady")


async def test_p17_a_restarted_projector_writes_nothing_that_stands_there_already(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    async with hub_with_a_cluster(redis, tmp_path) as (hub, make_status):
        writer = Snapshot(redis).writer
        status = make_status()
        await writer.put_cluster(
            "hub", ClusterRecord(name="hub", connected=True, reported_at=now())
        )
        await status.write_all()
        await make_status().write_all()
        assert writes(hub) == 1


def test_p17_missing_heartbeats_are_shown_in_time_and_no_pause_of_a_healthy_watcher_is():
    settings = ReconcilerSettings()
    written = timedelta(seconds=1)  # the look of who writes the status
    shown_after = settings.silent_after + settings.silence_check_interval + written
    assert shown_after <= settings.stale_after == timedelta(seconds=90)
    heartbeat: timedelta = WatcherSettings.model_fields["heartbeat_idle"].default
    assert 2 * heartbeat < settings.silent_after
