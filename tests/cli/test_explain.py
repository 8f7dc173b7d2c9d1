"""`fleetbus explain`: what happened to an object, and what each controller waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

import fleetbus
from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.errors import ConfigError
from fleetbus.intake.record import TOO_MANY, LastSeen, StoredRecord, mapped_requests
from fleetbus.process.access.nats import NatsAccess
from fleetbus.snapshot.records import ClusterRecord, ResourceRecord, ResourceState
from fleetbus.workqueue import Add, Backoff, Priority, QueuePolicy
from fleetbus.workqueue.items import read_item
from fleetbus_cli.events.explain import ExplainQuery, explain_object, gather
from fleetbus_cli.events.explain_text import describe_trouble, is_unknown, render, with_summary
from fleetbus_cli.events.troubles import read_troubles
from fleetbus_proto import keys
from support.eventually import eventually
from support.rigs.fleet import Rig
from support.rows import each_row
from support.stores.snapshot import Snapshot, Source
from support.stores.workqueue import RedisRig, named

OpenRig = Callable[..., Awaitable[Rig]]
View = dict[str, Any]
MAPS = "v1/configmaps"
HOUR = timedelta(hours=1)
DELAYED = keys.queue("copier", "delayed")


def ask(
    name: str, *, cluster: str = "a", resource: str = "cm", controller: str = ""
) -> ExplainQuery:
    return ExplainQuery.read(
        cluster=cluster,
        resource=resource,
        name=name,
        controller=controller,
        since="10m",
        output="json",
    )


def checker(busy: asyncio.Event) -> fleetbus.Controller:
    controller = fleetbus.Controller("checker")
    controller.watch(MAPS, namespaces=["default"], selector="seen=yes")

    @controller.reconcile
    async def decide(request: fleetbus.Request, fleet: fleetbus.Fleet) -> fleetbus.Result | None:
        await fleet.cluster(request.cluster).get(MAPS, request.namespace, request.name)
        if request.name == "bad":
            raise RuntimeError("no login at https://joe:hunter2@host/ with password=hunter2")
        if request.name == "hopeless":
            raise fleetbus.TerminalError("of the wrong kind")
        if request.name == "busy":
            await busy.wait()
        return fleetbus.Result(requeue_after=HOUR) if request.name == "later" else None

    return controller


class Desk:
    """Asks, and reads the answer."""

    def __init__(self, rig: Rig) -> None:
        self._shared = rig.shared

    async def explain(self, query: ExplainQuery, *, nats_url: str = "") -> View:
        nats = NatsAccess(url=nats_url) if nats_url else self._shared.nats
        return await gather(query, store=self._shared.store, nats=nats)

    async def comes_to(self, name: str, state: str, *, failures: int = 0) -> View:
        async def is_there() -> View | None:
            view = await self.explain(ask(f"default/{name}"))
            requests = view["controllers"]
            has_come = (
                requests and requests[0]["state"] == state and requests[0]["failures"] >= failures
            )
            return view if has_come and (requests[0]["lastRun"] or state == "processing") else None

        found = await eventually(is_there, timedelta(seconds=20))
        assert found is not None
        return found


@pytest.mark.slow
async def test_each_object_says_where_it_stands(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await open_rig("a", resources=(MAPS,))
    busy = asyncio.Event()
    for name in ("good", "bad", "hopeless", "busy", "later", "hidden"):
        labels = {} if name == "hidden" else {"seen": "yes"}
        rig.clusters["a"].create(MAPS, {"metadata": {"name": name, "labels": labels}}, "default")
    rig.start_reconciler(checker(busy))
    rig.start_watcher("a")
    await rig.synced("core/configmaps")
    desk = Desk(rig)

    good = await desk.comes_to("good", "idle")
    version = rig.clusters["a"].get(MAPS, "default", "good")["metadata"]["resourceVersion"]  # type: ignore[index]
    assert [change["resourceVersion"] for change in good["changes"]] == [version]
    assert 0 <= good["changes"][0]["storedAfterSeconds"] < 60
    assert good["snapshot"]["state"] == "live"
    assert good["snapshot"]["resourceVersion"] == version
    assert good["snapshot"]["complete"]
    (controller_view,) = good["controllers"]
    assert controller_view["controller"] == "checker"
    assert controller_view["reconciled"]["resourceVersion"] == version
    assert controller_view["lastRun"]["outcome"] == "done"
    assert controller_view["lastRun"]["waitedSeconds"] >= 0
    assert good["summary"] == "nothing to do"
    assert "checker: reconciled the newest version" in render(good)

    bad = await desk.comes_to("bad", "delayed", failures=8)
    assert "hunter2" not in json.dumps(bad)
    page = render(bad)
    assert "failure, next try in" in page
    assert page.splitlines()[-1].startswith("summary: checker: backing off after the ")
    assert "RuntimeError: no login at https://host/ with password=***" in page
    assert bad["controllers"][0]["lastRun"]["attempt"] >= 8

    hopeless = await desk.comes_to("hopeless", "idle")
    assert (
        "TerminalError: of the wrong kind; the next change starts it again" in hopeless["summary"]
    )
    later = await desk.comes_to("later", "delayed")
    assert "runs again in" in later["summary"]
    assert 3000 < later["controllers"][0]["dueInSeconds"] <= HOUR.total_seconds()
    running = await desk.comes_to("busy", "processing")
    assert "running on" in running["summary"]
    busy.set()

    hidden = await desk.explain(ask("default/hidden"))
    assert "excluded by a filter" in hidden["controllers"][0]["summary"]
    hidden["controllers"].append(hidden["controllers"][0] | {"controller": "other"})
    assert "\n\ncontroller checker, other: not affected: " in render(hidden)
    assert (await desk.explain(ask("default/good", controller="checker")))["controllers"]
    absent = await desk.explain(ask("default/nobody"))
    assert absent["summary"] == "no such object; check NAMESPACE/NAME"

    monkeypatch.setattr("fleetbus_cli.nats.PATIENCE", timedelta(seconds=0.2))
    alone = await desk.explain(ask("default/good"), nats_url="nats://joe:secret@127.0.0.1:9")
    assert alone["bus"] == "NATS at nats://127.0.0.1:9 does not answer"
    assert alone["controllers"][0]["lastRun"]["outcome"] == "done"

    for query, message in (
        (ask("default/x", cluster="b"), "cluster 'b' is not in the fleet; known: a"),
        (ask("default/x", resource="pods"), "resource 'pods' is not watched in cluster 'a'"),
        (ask("good"), "configmaps are namespaced: use NAMESPACE/good"),
        (
            ask("default/good", controller="chekcer"),
            "there is no controller 'chekcer'; did you mean 'checker'",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            await desk.explain(query)


def test_only_an_object_without_any_trace_is_unknown() -> None:
    absent: View = {"snapshot": {"state": "absent"}, "changes": [], "controllers": []}
    assert is_unknown(absent)
    assert not is_unknown(absent | {"snapshot": {"state": "deleted"}})
    assert not is_unknown(absent | {"changes": [{}]})
    run: View = {"controller": "checker", "summary": "succeeded", "lastRun": {}}
    assert not is_unknown(absent | {"controllers": [run]})


async def test_what_has_an_owner_mark_names_whose_runs_keep_it(open_rig: OpenRig) -> None:
    rig = await open_rig("a", resources=(MAPS,))
    metadata = {"name": "parent", "namespace": "default", "uid": "u"}
    parent: View = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    owned = fleetbus.own({"metadata": {"name": "kept"}}, parent, "b")
    rig.clusters["a"].create(MAPS, owned, "default")
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "free"}}, "default")
    rig.start_reconciler()
    rig.start_watcher("a")
    await rig.synced("core/configmaps")
    desk = Desk(rig)
    view = await desk.explain(ask("default/kept"))
    assert view["owner"] == {
        "cluster": "b",
        "kind": "ConfigMap",
        "namespace": "default",
        "name": "parent",
    }
    assert (
        "\n\nowner: ConfigMap default/parent in b; controllers of this object run for its owner"
        in render(view)
    )
    assert "owner" not in render(await desk.explain(ask("default/free")))


MESSAGE = "0 of 2 replicas are available: pod web-7d9-x: ImagePullBackOff: no such image"
STATUS: View = {
    "clusters": [
        {"name": "a", "state": "Applied", "health": "Healthy"},
        {
            "name": "b",
            "state": "Applied",
            "health": "Degraded",
            "unhealthy": {
                "object": "Deployment default/web",
                "reason": "ImagePullBackOff",
                "message": MESSAGE,
            },
        },
        {"name": "c", "state": "Failed", "reason": "Forbidden", "message": "no right"},
        {"name": "d", "state": "Waiting", "unhealthy": "odd"},
    ]
}


async def test_the_failing_pod_of_a_multi_cluster_resource_and_of_its_objects_is_named(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", "b")
    resource: View = {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "MultiClusterResource",
        "metadata": {"name": "x", "namespace": "default", "uid": "u"},
        "status": STATUS,
    }
    owned = fleetbus.own({"metadata": {"name": "kept", "namespace": "default"}}, resource, "a")
    async with connected(rig.shared.nats, name="test") as bus:
        await ensure_stream(bus)
        await ensure_bucket(bus)
    snapshot = Snapshot(rig.redis)
    await snapshot.set_up()
    for cluster, group, plural, obj in (
        ("a", "fleetbus.dev", "multiclusterresources", resource),
        ("b", "core", "configmaps", owned),
    ):
        now = datetime.now(UTC).isoformat()
        reported = ClusterRecord(name=cluster, connected=True, reported_at=now, last_answer=now)
        await snapshot.writer.put_cluster(cluster, reported)
        record = ResourceRecord(
            group=group,
            version="v1",
            plural=plural,
            state=ResourceState.SYNCED,
            last_received=now,
        )
        await snapshot.writer.put_resource_state(cluster, record)
        source = Source(cluster=cluster, group=group, resource=plural)
        name = obj["metadata"]["name"]
        await snapshot.apply(source.added(name, 1, namespace="default", body=orjson.dumps(obj)))
    desk = Desk(rig)
    line = f"in b: Degraded: Deployment default/web: {MESSAGE}"

    by_resource = await desk.explain(ask("default/x", resource="mcr"))
    assert [trouble["cluster"] for trouble in by_resource["troubles"]] == ["b", "c", "d"]
    assert f"{line}; in c: Failed: Forbidden: no right; and 1 more" in render(by_resource)

    by_object = await desk.explain(ask("default/kept", cluster="b"))
    assert by_object["summary"] == line


def test_a_multi_cluster_resource_without_clusters_says_why_it_is_not_ready() -> None:
    message = "the placement selects no cluster"
    ready = {"type": "Ready", "status": "False", "reason": "NoClusters", "message": message}
    (trouble,) = read_troubles({"status": {"conditions": [ready]}})
    assert describe_trouble(trouble) == f"NotReady: NoClusters: {message}"
    assert read_troubles({"status": {"conditions": [{**ready, "status": "True"}]}}) == []


@each_row(
    ("refusal", "unhealthy", "troubles"),
    [
        ("ConfigMap d/a: no", "Invalid: ConfigMap d/a: no", 1),
        ("ConfigMap d/a: no", "Invalid: ConfigMap d…", 1),
        ("ConfigMap d/a: n…", "Invalid: ConfigMap d/a: no", 1),
        ("ConfigMap d/a: no", "Invalid: ConfigMap d/b: no", 2),
        ("ConfigMap d/a: no", "it is not bound", 2),
        ("ConfigMap d/a: no", "", 2),
    ],
)
def test_a_refusal_is_reported_once(refusal: str, unhealthy: str, troubles: int) -> None:
    object_ = {"object": "ConfigMap d/a", "message": unhealthy}
    entry = {"name": "a", "state": "Failed", "reason": "Invalid", "message": refusal}
    entry |= {"health": "Unknown", "unhealthy": object_}
    assert len(read_troubles({"status": {"clusters": [entry]}})) == troubles


async def test_the_requests_that_a_map_named_are_explained_with_their_own_queue(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", "b", resources=(MAPS,))
    controller = fleetbus.Controller("mapper")

    def readers(
        obj: fleetbus.Object | None, _request: fleetbus.Request, _fleet: fleetbus.Fleet
    ) -> list[fleetbus.Request]:
        names: list[str] = obj["data"]["readers"].split() if obj and "data" in obj else []
        return [controller.request("b", "default", name) for name in names]

    controller.watch(MAPS, clusters=["a"], namespaces=["default"], map=readers)

    @controller.reconcile
    async def fail_for_two(request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
        if request.name == "two":
            raise RuntimeError("no way")

    source = {"metadata": {"name": "source"}, "data": {"readers": "one two"}}
    rig.clusters["a"].create(MAPS, source, "default")
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "unread"}}, "default")
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    rig.start_watcher("b")
    await rig.synced("core/configmaps")
    desk = Desk(rig)

    async def both_have_run() -> View | None:
        view = await desk.explain(ask("default/source"))
        states = [
            controller_view["state"]
            for controller_view in view["controllers"]
            if controller_view["lastRun"]
        ]
        return view if states == ["idle", "delayed"] else None

    view = await eventually(both_have_run, timedelta(seconds=20))
    assert view is not None
    first, two = view["controllers"]
    assert first["request"] == {"cluster": "b", "namespace": "default", "name": "one"}
    assert first["mapped"]
    assert first["lastRun"]["outcome"] == "done"
    assert two["failures"] >= 1
    page = render(view)
    assert "controller mapper for default/one in b: succeeded" in page
    assert view["summary"].startswith("mapper for default/two in b: backing off")

    (alone,) = (await desk.explain(ask("default/unread")))["controllers"]
    assert not alone["mapped"]


@pytest.mark.slow
async def test_a_change_that_comes_while_no_process_runs_is_not_called_excluded(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", resources=(MAPS,))
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "early"}}, "default")
    controller = fleetbus.Controller("reader")
    controller.watch(MAPS, namespaces=["default"])

    @controller.reconcile
    async def read(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        await fleet.cluster(request.cluster).get(MAPS, request.namespace, request.name)

    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await rig.synced("core/configmaps")
    desk = Desk(rig)
    await desk.comes_to("early", "idle")
    await rig.stop_reconciler()
    rig.start_reconciler()  # the projector alone
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "late"}}, "default")

    async def is_live() -> View | None:
        view = await desk.explain(ask("default/late"))
        return view if view["snapshot"]["state"] == "live" else None

    late = await eventually(is_live, timedelta(seconds=20))
    assert late is not None
    expected = "no process of reader runs; it sees this change when one starts"
    (controller_view,) = late["controllers"]
    assert (controller_view["running"], controller_view["summary"]) == (False, expected)
    assert late["summary"] == f"reader: {expected}"
    early = await desk.explain(ask("default/early"))
    assert early["controllers"][0]["summary"] == "reconciled the newest version"


async def test_the_run_of_a_namesake_is_not_shown(open_rig: OpenRig) -> None:
    """Where a controller maps ServiceAccounts, the run of ConfigMap x is not ServiceAccount x's."""
    accounts = "v1/serviceaccounts"
    rig = await open_rig("a", resources=(MAPS, accounts))
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "same"}}, "default")
    rig.clusters["a"].create(accounts, {"metadata": {"name": "same"}}, "default")
    controller = fleetbus.Controller("mapper")
    controller.watch(MAPS, namespaces=["default"])

    def nobody(
        _obj: fleetbus.Object | None, _request: fleetbus.Request, _fleet: fleetbus.Fleet
    ) -> list[fleetbus.Request]:
        return []

    controller.watch(accounts, namespaces=["default"], map=nobody)

    @controller.reconcile
    async def run(_request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
        pass

    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await rig.synced("core/configmaps", "core/serviceaccounts")
    desk = Desk(rig)
    named = await desk.comes_to("same", "idle")
    assert named["controllers"][0]["lastRun"]["outcome"] == "done"
    (controller_view,) = (await desk.explain(ask("default/same", resource="sa")))["controllers"]
    assert controller_view["lastRun"] is None
    assert controller_view["summary"].startswith("not affected")


def test_more_mapped_requests_than_the_record_keeps_are_said_to_be_more() -> None:
    cut = StoredRecord(LastSeen((1, "5"), (1, "5"), {1: [TOO_MANY], 2: ["b/default/one"], 3: None}))
    requests, is_cut = mapped_requests("mapper", cut)
    assert requests == [fleetbus.Request("mapper", "b", "default", "one")]
    assert is_cut
    assert mapped_requests("mapper", StoredRecord()) == ([], False)


@each_row(
    ("arguments", "message"),
    [
        ({"name": "default/"}, "is neither NAMESPACE/NAME nor"),
        ({"name": "a/b/c"}, "is neither NAMESPACE/NAME nor"),
        ({"name": "x", "cluster": "No_Cluster"}, "No_Cluster"),
        ({"name": "x", "resource": "a b"}, "a b"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(arguments.pop("name"), **arguments)


@pytest.mark.parametrize(
    ("ended", "summary"),
    [
        (
            timedelta(minutes=3),
            "overdue by 7m: is a worker running? (9th failure: KeyError: 'x')",
        ),
        (timedelta(), "backing off after the 9th failure, next try in <1 ms: KeyError: 'x'"),
    ],
)
def test_what_nobody_comes_to_run_is_overdue(ended: timedelta, summary: str) -> None:
    quarantined = {"state": "quarantined", "quarantines": 1, "quarantineSeconds": -0.0003}
    assert with_summary(quarantined, {})["summary"].endswith("next try in <1 ms")
    last = {"error": "KeyError: 'x'", "endedAt": (datetime.now(UTC) - ended).isoformat()}
    delayed = {"state": "delayed", "failures": 9, "dueInSeconds": -420.0, "lastRun": last}
    assert with_summary(delayed, {})["summary"] == summary


async def test_a_look_tells_each_state_of_an_item(redis: Redis) -> None:
    minute = timedelta(minutes=1)
    policy = QueuePolicy(
        backoff=Backoff(minute, 1, minute), breaker=1, breaker_pause=Backoff(minute, 1, minute)
    )
    rig = RedisRig(redis, "copier", policy)
    queue, item = rig.queue, named("x")
    assert (await read_item(redis, item)).state == "idle"
    await queue.add([Add(item, Priority.INITIAL)])
    ready = await read_item(redis, item)
    assert (ready.state, ready.priority) == ("ready", Priority.INITIAL)
    (lease,) = await queue.take(1)
    taken = await read_item(redis, item)
    assert (taken.state, bool(taken.worker), taken.waiting) == ("processing", True, None)
    assert taken.lease is not None
    assert timedelta() < taken.lease <= policy.lease
    await queue.retry(lease, unreachable=True)
    await queue.done([lease])
    delayed = await read_item(redis, item)
    assert (delayed.state, delayed.failures, delayed.outage) == ("delayed", 1, 1)
    assert delayed.due_in is not None
    assert timedelta(seconds=50) < delayed.due_in <= minute
    members: list[Any] = await redis.zrange(DELAYED, 0, -1)
    await redis.zincrby(DELAYED, -2 * minute / timedelta(microseconds=1), members[0])
    overdue = await read_item(redis, item)
    assert overdue.due_in is not None
    assert -2 * minute < overdue.due_in < -minute / 2
    await queue.add([Add(item)])
    assert (await read_item(redis, item)).state == "blocked"
    await queue.aclose()


def test_a_store_that_is_away_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    away = {"nats_url": "nats://127.0.0.1:1", "redis_url": "redis://:secret@127.0.0.1:1"}
    assert explain_object(ask("default/x"), **away) == 1
    err = capsys.readouterr().err
    assert err.startswith("fleetbus: Redis at redis://127.0.0.1:1 does not answer")
    assert err.count("\n") == 1
