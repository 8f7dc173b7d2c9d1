"""A resource that no cluster has is named in the error, with the closest one that exists."""

from __future__ import annotations

import itertools
import pathlib
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.errors import NotEngaged, NotSynced
from fleetbus.kube.resource_names import suggest_resource
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.reads.suggestions import WatchedResources
from fleetbus.snapshot.records import ResourceRecord, ResourceState
from fleetbus.worker.failure_log import PATIENCE, FailureLog
from fleetbus.workqueue import Add, RedisQueue
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import parse_resource
from support.eventually import eventually
from support.rigs.one_cluster import one_cluster
from support.rigs.worker import FIRST, POLICY, Notes, counted, working
from support.rows import each_row
from support.stores.snapshot import Snapshot
from support.stores.workqueue import named

if TYPE_CHECKING:
    from fleetbus.reconcile import Request

KNOWN = {
    "apps/deployments",
    "batch/jobs",
    "cert-manager.io/issuers",
    "core/configmaps",
    "core/events",
    "core/pods",
    "events.k8s.io/events",
}


@each_row(
    ("named", "suggestion"),
    [
        ("v1/configmap", "core/configmaps"),
        ("v1/configmapps", "core/configmaps"),
        ("v1/cm", "core/configmaps"),
        ("v1/deployments", "apps/deployments"),
        ("v1/deploy", "apps/deployments"),
        ("apps/v1/job", "batch/jobs"),
        ("certmanager.io/v1/issuer", "cert-manager.io/issuers"),
        ("events.k8s.io/v1/evnets", "events.k8s.io/events"),
        ("v1/evnets", "core/events"),
        ("example.com/v1/foos", ""),
    ],
)
def test_what_was_meant_is_the_plural_of_a_name_or_what_is_spelt_alike(
    named: str, suggestion: str
) -> None:
    assert suggest_resource(parse_resource(named), KNOWN) == suggestion


async def put(snapshot: Snapshot, group: str, version: str, plural: str) -> None:
    record = ResourceRecord(
        group=group, version=version, plural=plural, state=ResourceState.SYNCED, epoch="1 1"
    )
    await snapshot.writer.put_resource_state("eu1", record)


async def test_p14_a_read_of_what_no_cluster_has_says_what_was_meant(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    async with one_cluster(redis, tmp_path) as rig:
        await put(rig.snapshot, "apps", "v1", "deployments")
        for named, suggestion in (("v1/pod", "v1/pods"), ("v1/deployments", "apps/v1/deployments")):
            for read in (
                rig.cluster.get(named, "prod", "web"),
                rig.cluster.list(named),
                rig.fleet.list(named),
                rig.fleet.get_all(named, "prod", "web"),
            ):
                with pytest.raises(NotSynced, match=f"did you mean '{suggestion}'\\?$") as caught:
                    await read
                assert (caught.value.unwatched, caught.value.did_you_mean) == (named, suggestion)
        with pytest.raises(NotSynced, match="FLEETBUS_WATCHER_SECRETS=true"):
            await rig.cluster.get("v1/secrets", "prod", "web")
        with pytest.raises(NotSynced, match="left out by the settings of the watcher"):
            await rig.cluster.get("example.com/v1/foos", "prod", "web")


async def test_p14_what_another_cluster_has_or_nobody_has_reported_of_yet_is_not_doubted(
    redis: Redis,
) -> None:
    snapshot, deployments = Snapshot(redis), parse_resource("apps/v1/deployments")
    watched = WatchedResources(redis, SnapshotKeys())
    assert await watched.suggest(deployments) is None
    await snapshot.set_up("eu1", "us1")
    assert await watched.suggest(deployments) is None
    await put(snapshot, "apps", "v1", "deployments")
    assert await watched.suggest(deployments) is None
    doubt = await watched.suggest(parse_resource("apps/v1/deployment"))
    assert doubt is not None
    assert (str(doubt), doubt.hint) == ("did you mean 'apps/v1/deployments'?", "")


async def test_the_clusters_are_asked_once_in_some_seconds(redis: Redis) -> None:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    await put(snapshot, "core", "v1", "pods")
    reader = SnapshotReader(redis, SnapshotKeys())
    assert await reader.watched.keys() == {"core/pods"}
    await put(snapshot, "apps", "v1", "deployments")
    assert await reader.watched.keys() == {"core/pods"}


def test_a_resource_that_stays_unwatched_is_a_warning_once_while_it_lasts() -> None:
    now, numbers = [0.0], itertools.count()
    failures = FailureLog(is_quiet=False, clock=lambda: now[0])
    error = NotSynced("v1/configmap is not watched in any cluster")
    error.unwatched, error.did_you_mean = "v1/configmap", "v1/configmaps"

    def logged(one: Exception) -> tuple[str, str]:
        with capture_logs() as lines:
            request = named(f"r{next(numbers)}")  # a first failure each
            failures.log_waiting(request, one, retry_in=timedelta(seconds=1))
        (line,) = lines
        assert line["event"] == "reconcile_waits"
        assert line["reason"].endswith(str(one))
        return line["log_level"], line.get("did_you_mean", "")

    assert logged(error) == ("info", "v1/configmaps")  # the watcher may just be starting
    now[0] += PATIENCE.total_seconds()
    assert [logged(error) for _ in range(2)] == [
        ("warning", "v1/configmaps"),
        ("info", "v1/configmaps"),
    ]
    assert logged(NotSynced("soon")) == logged(NotEngaged("soon")) == ("info", "")
    now[0] += 60
    assert logged(error)[0] == "warning"


async def test_a_misspelt_read_in_a_reconcile_function_is_warned_of(
    redis: Redis, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.worker.failure_log.PATIENCE", timedelta())
    error = NotSynced("v1/configmap is not watched in any cluster")
    error.unwatched, error.did_you_mean = "v1/configmap", "v1/configmaps"

    async def act(_request: Request) -> None:
        raise error

    before, queue = counted("retried"), RedisQueue(redis, "copier", policy=POLICY)
    with capture_logs() as lines:
        async with working(queue, valkey_url, Notes(act)):
            await queue.add([Add(FIRST)])
            await eventually(lambda: counted("retried") >= before + 3)
    await queue.aclose()
    logged = [line for line in lines if line["event"] == "reconcile_waits"]
    assert [line["log_level"] for line in logged[:3]] == ["warning", "debug", "debug"]
    assert logged[0]["did_you_mean"] == "v1/configmaps"
