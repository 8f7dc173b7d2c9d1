"""From a changed object to the requests it wakes; user code there cannot stop the stream (P8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisGone
from structlog.testing import capture_logs

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.controller.controller import Controller
from fleetbus.controller.filters import PartialMetadata, read_metadata
from fleetbus.errors import ClusterNotFound, NotSynced
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.controller_store import RedisStore
from fleetbus.intake.full_enqueue import FullEnqueue
from fleetbus.intake.intake import Intake
from fleetbus.intake.matching import Reason
from fleetbus.intake.routing import Router
from fleetbus.ownership import ADMIRALTY_OWNER_ANNOTATION, OWNER_ANNOTATION
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.workqueue import Add, Priority
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_proto.events import Event
from fleetbus_proto.keys import SnapshotKeys
from support.rigs.intake import no_heartbeat
from support.stores.snapshot import Snapshot, Source

PODS = "v1/pods"
EU, US = Source(cluster="eu1"), Source(cluster="us1")
OWNER = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "namespace": "prod",
    "name": "web",
    "uid": "u-1",
    "clusterName": "us1",
}


class Provider:
    """Two clusters with labels."""

    name = "test"

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        yield [
            ClusterInfo(name="eu1", labels={"region": "eu"}, provider="test", config=None),
            ClusterInfo(name="us1", labels={"region": "us"}, provider="test", config=None),
        ]
        await asyncio.Event().wait()


@pytest.fixture
async def clusters() -> AsyncGenerator[Clusters]:
    registry = Clusters([Provider()])
    task = asyncio.create_task(registry.run())
    await registry.known()
    yield registry
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Routed:
    """A controller's router; `resyncs` names the clusters for which user code failed."""

    def __init__(self, clusters: Clusters, redis: Redis) -> None:
        self.controller = Controller("copier", timeout=timedelta(milliseconds=500))
        self.resyncs: list[str] = []
        self.reader = SnapshotReader(redis, SnapshotKeys())
        self.router = Router(
            self.controller,
            clusters=clusters,
            fleet=Fleet(clusters, self.reader),
            schedule_resync=self.resyncs.append,
        )

    async def wakes(self, *events: Event) -> list[str]:
        return [str(add.request) for add in await self.router.adds(events)]


@pytest.fixture
def routed(clusters: Clusters, redis: Redis) -> Routed:
    return Routed(clusters, redis)


def owned(mark: Any, annotation: str = OWNER_ANNOTATION, **more: Any) -> Event:
    text = mark if isinstance(mark, str) else msgspec.json.encode(mark).decode()
    return EU.added("copy", 5, metadata={"annotations": {annotation: text, **more}})


async def test_p8_an_identity_watch_wakes_the_object_itself_with_its_version(
    routed: Routed,
) -> None:
    routed.controller.watch(PODS)
    for event in (EU.added("a", 5), EU.modified("a", 6), EU.deleted("a", 7)):
        adds = await routed.router.adds([event])
        trigger = f"1/{event.resource_version}".encode()
        request = Request("copier", "eu1", "prod", "a")
        assert adds == [Add(request, Priority.LIVE, trigger)]


async def test_q10_a_listed_object_has_the_priority_of_a_first_list(routed: Routed) -> None:
    routed.controller.watch(PODS)
    assert [add.priority for add in await routed.router.adds([EU.listed("a", 5)])] == [
        Priority.INITIAL
    ]


async def test_other_resources_and_namespaces_wake_nobody(routed: Routed) -> None:
    routed.controller.watch(PODS, namespaces=["prod", "test"])
    assert await routed.wakes(Source(group="apps").added("a", 1)) == []
    assert await routed.wakes(Source(resource="services").added("a", 1)) == []
    assert await routed.wakes(EU.added("a", 1, namespace="dev")) == []
    assert await routed.wakes(EU.added("a", 1, namespace="test")) == ["cluster://eu1/test/a"]


def always(old: Any, new: Any) -> bool:
    del old, new
    return True


def itself(object: Any, request: Request, fleet: Any) -> list[Request]:  # noqa: A002 -- the field's word
    del object, fleet
    return [request]


def broken_choice(cluster: ClusterInfo) -> bool:
    return cluster.labels["no such label"] == "x"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"selector": "app=web"},
        {"selector": "app=web", "predicate": always},
        {"selector": "app=web", "map": itself},
        {"annotation_selector": "kept"},
        {"namespaces": ["test"]},
        {"clusters": ["us1"]},
        {"clusters": broken_choice},
    ],
)
async def test_p8_what_is_refused_at_once_would_have_changed_nothing(
    routed: Routed, options: dict[str, Any]
) -> None:
    routed.controller.watch(PODS, **options)
    refused: list[bool] = []
    for source in (EU, US, Source(cluster="unknown")):
        for labels in ({}, {"app": "web"}):
            metadata = {"labels": labels}
            for event in (
                source.added("a", 1, metadata=metadata),
                source.listed("a", 1, metadata=metadata),
                source.deleted("a", 2),
                msgspec.structs.replace(source.added("a", 3), object=None, degraded=True),
            ):
                refused.append(routed.router.refuses(event, lambda event=event: metadata_of(event)))
                if refused[-1]:
                    routing = await routed.router.evaluate(event)
                    assert (routing.adds, routing.last_seen) == ([], None)
                    assert routing.is_complete
    assert any(refused) == bool(options.keys() - {"predicate", "map"}) or "clusters" in options


def metadata_of(event: Event) -> PartialMetadata | None:
    return None if event.object is None else read_metadata(event.object)


def is_us(info: ClusterInfo) -> bool:
    return info.name == "us1"


@pytest.mark.parametrize("chosen", [["us1"], "region=us", "region in (us, asia)", is_us])
async def test_clusters_are_chosen_by_name_by_label_or_by_predicate(
    routed: Routed, chosen: Any
) -> None:
    routed.controller.watch(PODS, clusters=chosen)
    woken = await routed.wakes(EU.added("a", 1), US.added("a", 1))
    assert woken == ["cluster://us1/prod/a"]


async def test_a_predicate_that_raises_enqueues_nothing_and_requests_a_resync(
    routed: Routed,
) -> None:
    def broken(info: ClusterInfo) -> bool:
        return info.labels["no such label"] == "x"

    routed.controller.watch(PODS, clusters=broken)
    routed.controller.watch(PODS, namespaces=["prod"])
    assert await routed.wakes(EU.added("a", 1)) == ["cluster://eu1/prod/a"]
    assert routed.resyncs == ["eu1"]


@pytest.mark.parametrize("annotation", [OWNER_ANNOTATION, ADMIRALTY_OWNER_ANNOTATION])
@pytest.mark.parametrize("resource", [PODS, "*"])
async def test_an_owned_object_wakes_its_owner_in_the_owners_cluster(
    routed: Routed, annotation: str, resource: str
) -> None:
    routed.controller.watch_owned(resource, owner_kind="Deployment")
    assert await routed.wakes(owned(OWNER, annotation)) == ["cluster://us1/prod/web"]
    gone = EU.deleted("copy", 6, body=owned(OWNER, annotation).object)
    assert await routed.wakes(gone) == ["cluster://us1/prod/web"]


async def test_a_change_that_the_watch_ignores_wakes_nobody_and_its_owner_is_remembered(
    routed: Routed,
) -> None:
    routed.controller.watch_owned(PODS, ignore=lambda event: event.resource_version == "5")
    event = owned(OWNER)
    evaluation = await routed.router.evaluate(event)
    assert evaluation.adds == []
    assert evaluation.last_seen is not None
    assert list(evaluation.last_seen.members.values()) == [["us1/prod/web"]]
    assert await routed.wakes(EU.modified("copy", 6, body=event.object))
    after_a_gap = await routed.router.evaluate(event, reason=Reason.GAP)
    assert after_a_gap.adds


async def test_an_owner_of_another_kind_is_not_woken(routed: Routed) -> None:
    routed.controller.watch_owned(PODS, owner_kind="Job")
    assert await routed.wakes(owned(OWNER)) == []


@pytest.mark.parametrize(
    "mark",
    [
        "",
        "not json",
        "[]",
        "{}",
        {**OWNER, "name": 7},
        {**OWNER, "clusterName": "no/cluster"},
        {**OWNER, "clusterName": "*"},
        {**OWNER, "namespace": "a/b"},
    ],
)
async def test_a_mark_that_cannot_be_read_wakes_nobody_and_stops_nothing(
    routed: Routed, mark: Any
) -> None:
    routed.controller.watch_owned(PODS)
    routed.controller.watch(PODS)
    with capture_logs() as logs:
        assert await routed.wakes(owned(mark)) == ["cluster://eu1/prod/copy"]
    assert [entry["event"] for entry in logs] == (["owner_unreadable"] if mark else [])


@pytest.mark.parametrize(
    "body",
    [
        b'{"fleetbus.dev/owner": 1}',
        b'{"metadata": {"annotations": {"fleetbus.dev/owner": null}}}',
        b'{"metadata": {"annotations": {"fleetbus.dev/owner": "{}", "other": 7}}}',
        b'{"metadata": "fleetbus.dev/owner"',
        b'{"fleetbus.dev/owner": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"metadata": {"annotations": {"fleetbus.dev/owner": "\xff"}}}',
        None,
    ],
)
async def test_a_body_that_cannot_be_read_wakes_no_owner_and_stops_nothing(
    routed: Routed, body: bytes | None
) -> None:
    routed.controller.watch_owned(PODS)
    assert await routed.wakes(EU.added("a", 1, body=body)) == []


async def test_a_map_may_wake_objects_of_other_clusters_and_sees_the_object(
    routed: Routed,
) -> None:
    async def spread(obj: Any, request: Request, fleet: Fleet) -> Iterable[Request]:
        assert request.name == obj["metadata"]["name"]
        return [
            Request(request.controller, info.name, "x", request.name) for info in fleet.clusters()
        ]

    routed.controller.watch(PODS, map=spread)
    adds = await routed.router.adds([EU.added("a", 5)])
    # No trigger: the object's version says nothing about the object that is woken (P10).
    requests = [Request("copier", name, "x", "a") for name in ("eu1", "us1")]
    assert adds == [Add(request, cause="eu1") for request in requests]


async def test_a_map_gets_none_for_an_object_without_a_body(routed: Routed) -> None:
    async def note(obj: Any, request: Request, _fleet: Fleet) -> Iterable[Request]:
        return [request] if obj is None else []

    routed.controller.watch(PODS, map=note)
    assert await routed.wakes(EU.added("a", 1, body=None)) == ["cluster://eu1/prod/a"]


async def test_requests_that_a_map_made_for_another_controller_are_ours(routed: Routed) -> None:
    async def other(_obj: Any, request: Request, _fleet: Fleet) -> Iterable[Request]:
        return [Request("somebody else", request.cluster, request.namespace, request.name)]

    routed.controller.watch(PODS, map=other)
    adds = await routed.router.adds([EU.added("a", 1)])
    assert [add.request.controller for add in adds] == ["copier"]


async def test_q9_a_request_of_a_cluster_outside_the_fleet_is_dropped_until_it_joins(
    routed: Routed,
) -> None:
    async def invent(_obj: Any, request: Request, _fleet: Fleet) -> Iterable[Request]:
        return [
            Request(request.controller, name, "x", request.name) for name in ("us1", "invented")
        ]

    def dropped() -> float:
        labels = {"controller": "copier"}
        return REGISTRY.get_sample_value("fleetbus_requests_outside_fleet_total", labels) or 0

    routed.controller.watch(PODS, map=invent)
    before = dropped()
    decision = await routed.router.evaluate(EU.added("a", 5))
    assert dropped() == before + 1
    assert [add.request.cluster for add in decision.adds] == ["us1"]
    (targets,) = decision.last_seen.members.values() if decision.last_seen else [None]
    assert targets == ["us1/x/a", "invented/x/a"], "remembered, for a look when a cluster joins"


async def _broken(kind: str) -> Any:
    if kind == "hangs":
        await asyncio.Event().wait()
    if kind == "raises":
        raise KeyError("spec")
    if kind == "exits":
        raise SystemExit(3)
    if kind == "interrupts":
        raise KeyboardInterrupt
    if kind == "closes":
        raise GeneratorExit
    if kind == "cancels":
        raise asyncio.CancelledError("of a task of its own")
    if kind == "not synced":
        raise NotSynced("soon")
    return {
        "nonsense": 7,
        "not requests": ["a"],
        "no cluster": [Request("copier", "no/cluster", "", "a")],
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        *("raises", "exits", "interrupts", "closes", "cancels", "hangs"),
        *("not synced", "nonsense", "not requests", "no cluster"),
    ],
)
async def test_a_map_that_fails_requests_a_resync_and_disturbs_no_other_watch(
    routed: Routed, kind: str
) -> None:
    async def broken(_obj: Any, _own: Request, _fleet: Fleet) -> Iterable[Request]:
        return await _broken(kind)

    routed.controller.watch(PODS, map=broken)
    routed.controller.watch(PODS, namespaces=["prod"])
    assert await routed.wakes(EU.added("a", 1)) == ["cluster://eu1/prod/a"]
    assert routed.resyncs == ["eu1"]


INVALID: dict[str, tuple[Any, str]] = {
    "nothing": (None, "NoneType"),
    "a string": ("S3CRET", "str of str"),
    "names": (["S3CRET"], "list of str"),
    "a number for a name": ([Request("", "eu1", "", 7)], "Request with the name int"),  # type: ignore[arg-type]
    "no cluster": ([Request("", "a/b", "", "a")], "Request that no queue can hold: InvalidName"),
}


@pytest.mark.parametrize("kind", INVALID)
async def test_what_a_map_answers_in_place_of_requests_is_reported_once_and_counted_for_each(
    routed: Routed, kind: str
) -> None:
    answer, expected = INVALID[kind]

    def invalid(_obj: Any, _own: Request, _fleet: Fleet) -> Any:
        return answer

    def failures() -> float:
        labels = {"controller": routed.controller.name, "cluster": "eu1"}
        return REGISTRY.get_sample_value("fleetbus_map_failures_total", labels) or 0.0

    routed.controller.watch(PODS, map=invalid)
    before = failures()
    with capture_logs() as lines:
        for name in "abc":
            assert await routed.wakes(EU.added(name, 1)) == []
    [line] = [line for line in lines if line["event"] == "invalid_map_result"]
    assert line["result"].startswith(expected)
    assert line["function"].endswith("invalid")
    assert "S3CRET" not in str(line)
    assert failures() == before + 3
    assert routed.resyncs == ["eu1"] * 3, "nothing is lost: all of the cluster is looked at again"


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
async def test_r8_a_predicate_that_would_end_the_process_requests_a_resync(
    routed: Routed, error: BaseException
) -> None:
    def raises(*_: Any) -> Any:
        raise error

    routed.controller.watch(PODS, predicate=raises)
    assert await routed.wakes(EU.added("a", 1)) == []
    assert routed.resyncs == ["eu1"]


async def test_functions_of_two_watches_that_fail_are_reported_once_each(routed: Routed) -> None:
    def raises(*_: Any) -> Any:
        raise ValueError("boom")

    routed.controller.watch(PODS, map=raises)
    routed.controller.watch(PODS, predicate=raises)
    with capture_logs() as lines:
        for name in "abc":
            assert await routed.wakes(EU.added(name, 1)) == []
    assert [line["event"] for line in lines] == ["map_failed", "predicate_failed"]
    assert all("ValueError: boom" in line["exception"] for line in lines)


async def test_a_map_of_an_object_that_is_no_json_stops_nothing(routed: Routed) -> None:
    async def never(_obj: Any, _own: Request, _fleet: Fleet) -> Iterable[Request]:
        raise AssertionError

    routed.controller.watch(PODS, map=never)
    assert await routed.wakes(EU.added("a", 1, body=b"{")) == []
    assert routed.resyncs == ["eu1"]


async def test_a_map_that_needs_a_cluster_which_left_ends_quietly(routed: Routed) -> None:
    async def left(_obj: Any, _own: Request, fleet: Fleet) -> Iterable[Request]:
        fleet.cluster("gone")
        raise AssertionError

    routed.controller.watch(PODS, map=left)
    with pytest.raises(ClusterNotFound):
        routed.router._fleet.cluster("gone")  # pyright: ignore[reportPrivateUsage]
    assert await routed.wakes(EU.added("a", 1)) == []
    assert routed.resyncs == []


async def test_p9_a_map_that_cannot_read_the_store_keeps_the_batch(routed: Routed) -> None:
    async def away(_obj: Any, _own: Request, _fleet: Fleet) -> Iterable[Request]:
        raise RedisGone("away")

    routed.controller.watch(PODS, map=away)
    with pytest.raises(RedisGone):
        await routed.wakes(EU.added("a", 1))


async def test_p12_a_full_enqueue_names_live_and_deleted_objects_without_a_trigger(
    routed: Routed, redis: Redis
) -> None:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1", "us1")
    # No heartbeat has reported these resources yet: the rows are there all the same.
    await snapshot.apply(
        EU.added("a", 1),
        EU.added("b", 2),
        EU.deleted("b", 3),
        US.added("c", 1),
        Source(group="apps").added("x", 1),
    )
    routed.controller.watch(PODS)
    queue = RedisQueue(redis, "copier")
    store = RedisStore(
        routed.controller, queue, redis=redis, reader=routed.reader, make_heartbeat=no_heartbeat
    )
    intake = Intake(routed.router, store=store, reader=routed.reader)
    full = FullEnqueue(
        routed.controller,
        router=routed.router,
        intake=intake,
        record=store.record,
        reader=routed.reader,
    )
    await full.run()
    leases = await queue.take(10)
    assert {str(lease.request) for lease in leases} == {
        "cluster://eu1/prod/a",
        "cluster://eu1/prod/b",
        "cluster://us1/prod/c",
    }
    assert {(lease.priority, lease.trigger) for lease in leases} == {(Priority.INITIAL, b"")}
    await queue.aclose()
