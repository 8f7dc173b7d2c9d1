"""T1: requests from every cluster, deduplicated; deletions are never missed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias, cast

import nats as nats_py
import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request, Result
from fleetbus_proto import codec
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import STREAM
from support.eventually import eventually, never, stays
from support.objects import pod
from support.rigs.fleet import Recorder, Rig
from support.rigs.fleet_fixtures import ONE_OF_EACH
from support.rigs.scenario import QUIET

OpenRig = Callable[..., Awaitable[Rig]]
WITHIN = timedelta(seconds=20)  # other tests may run beside it on a small machine
PODS = "v1/pods"


async def start(open_rig: OpenRig) -> tuple[Rig, Recorder]:
    rig = await open_rig("a", "b")
    for cluster, names in (("a", ("p1", "p2")), ("b", ("p1", "p2", "p3"))):
        for name in names:
            rig.clusters[cluster].create(PODS, pod(name), "default")
    controller = Controller("helloworld")
    controller.watch(PODS)
    recorder = Recorder(controller, PODS)
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    rig.start_watcher("b")
    await eventually(lambda: len(recorder.keys()) == 5, within=WITHIN)
    await rig.synced("core/pods")
    await rig.quiet("helloworld")
    return rig, recorder


async def test_t1_every_existing_pod_is_reconciled_under_its_own_cluster(
    open_rig: OpenRig,
) -> None:
    _, recorder = await start(open_rig)
    assert recorder.keys() == {
        ("a", "default", "p1"),
        ("a", "default", "p2"),
        ("b", "default", "p1"),
        ("b", "default", "p2"),
        ("b", "default", "p3"),
    }


@pytest.mark.full  # tests/sdk/workqueue/test_contract.py has it of each queue
async def test_t1_seven_quick_changes_are_at_most_seven_runs_and_the_last_sees_the_last(
    open_rig: OpenRig,
) -> None:
    rig, recorder = await start(open_rig)
    recorder.runs.clear()
    b = rig.clusters["b"]
    b.create(PODS, pod("nginx"), "default")
    for number in range(6):
        patch = {"metadata": {"labels": {"turn": str(number)}}}
        b.patch(PODS, "default", "nginx", patch)

    def is_last_seen() -> bool:
        runs = recorder.of("b", "default", "nginx")
        return bool(runs) and (
            (runs[-1].object or {}).get("metadata", {}).get("labels", {}).get("turn") == "5"
        )

    await eventually(is_last_seen, within=WITHIN)
    # nothing more may come
    await stays(
        {("b", "default", "nginx")},
        recorder.keys,
        QUIET,
    )
    assert 1 <= len(recorder.runs) <= 7


@pytest.mark.full  # tests/sdk/workqueue/test_contract.py has it of each queue
async def test_t1_changes_during_a_slow_run_cause_one_further_run(open_rig: OpenRig) -> None:
    rig, recorder = await start(open_rig)
    recorder.runs.clear()
    recorder.pause = 0.4  # longer than the changes take
    b = rig.clusters["b"]
    b.create(PODS, pod("nginx"), "default")
    for number in range(6):
        b.patch(PODS, "default", "nginx", {"metadata": {"labels": {"turn": str(number)}}})
        await asyncio.sleep(0.02)  # the pace of the changes
    await eventually(lambda: len(recorder.runs) >= 2, within=WITHIN)
    # nothing more may come
    await never(lambda: len(recorder.runs) > 3, QUIET)
    last = recorder.runs[-1].object or {}
    assert last["metadata"]["labels"]["turn"] == "5"


@pytest.mark.slow
async def test_t1_a_deletion_is_one_more_run_that_finds_it_absent(open_rig: OpenRig) -> None:
    rig, recorder = await start(open_rig)
    recorder.runs.clear()
    rig.clusters["b"].delete(PODS, "default", "p3")
    await eventually(lambda: bool(recorder.runs), within=WITHIN)
    await stays({("b", "default", "p3")}, recorder.keys, QUIET)
    # The end of a pod is a change before it is a deletion: each may cause a run, and the first may
    # already find what the second is about.
    assert recorder.runs[-1].object is None
    assert len(recorder.runs) <= 2


@pytest.mark.slow
async def test_t1_equal_names_in_two_clusters_stay_apart(open_rig: OpenRig) -> None:
    rig, recorder = await start(open_rig)
    recorder.runs.clear()
    rig.clusters["a"].patch(PODS, "default", "p1", {"metadata": {"labels": {"x": "y"}}})
    await eventually(lambda: bool(recorder.runs), within=WITHIN)
    await stays({("a", "default", "p1")}, recorder.keys, QUIET)
    assert (recorder.runs[-1].object or {})["metadata"]["labels"] == {"x": "y"}


class Failing(Recorder):
    """Fails for one pod, or asks for another run of it, depending on `mode`."""

    mode = ""

    async def _note(self, request: Request, fleet: Fleet) -> Result | None:
        await super()._note(request, fleet)
        if request.name == "bad" and self.mode == "fail":
            raise RuntimeError("never works")
        if request.name == "bad" and self.mode == "later":
            return Result(requeue_after=timedelta(milliseconds=500))
        return None


async def test_t1_one_pod_that_always_fails_delays_no_other_and_a_success_clears_its_count(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", "b")
    recorder = Failing(Controller("helloworld", concurrency=1), PODS)
    recorder.controller.watch(PODS)
    rig.start_reconciler(recorder.controller)
    for cluster in rig.clusters:
        rig.start_watcher(cluster)
    await rig.synced("core/pods")
    recorder.mode = "fail"
    with capture_logs() as logs:

        def delays() -> list[float]:
            return [x["retry_in_seconds"] for x in logs if x["event"] == "reconcile_failed"]

        rig.clusters["a"].create(PODS, pod("bad"), "default")
        await eventually(lambda: len(delays()) >= 6, within=WITHIN)
        assert delays()[:6] == [0.005 * 2**n for n in range(6)]
        rig.clusters["b"].create(PODS, pod("good"), "default")
        await eventually(lambda: recorder.of("b", "default", "good"), within=WITHIN)
        for mode in ("", "later"):
            # It succeeds, or asks for another run; both forget its failures.
            recorder.mode, runs = mode, len(recorder.of("a", "default", "bad"))
            touch(rig, str(runs))
            await eventually(
                lambda n=runs: len(recorder.of("a", "default", "bad")) > n, within=WITHIN
            )
            await rig.quiet("helloworld")  # the outcome is written
            logs.clear()
            recorder.mode = "fail"
            touch(rig, f"{runs} more")
            await eventually(delays, within=WITHIN)
            assert delays()[0] == 0.005
        recorder.mode = ""


def touch(rig: Rig, value: str) -> None:
    patch = {"metadata": {"annotations": {"touched": value}}}
    rig.clusters["a"].patch(PODS, "default", "bad", patch)


async def test_t1_a_pod_deleted_while_the_watcher_was_down_is_reconciled_and_on_the_bus(
    open_rig: OpenRig,
) -> None:
    rig, recorder = await start(open_rig)
    await rig.stop_watcher("b")
    recorder.runs.clear()
    rig.clusters["b"].delete(PODS, "default", "p2")
    events: list[Event] = []

    async def note(message: Msg) -> None:
        event = codec.decode(message.data)
        assert isinstance(event, Event)
        events.append(event)

    client = await nats_py.connect(rig.shared.nats_url)
    try:
        await client.subscribe("fleetbus.events.b.core.pods.default.p2.deleted", cb=note)
        rig.start_watcher("b")
        await eventually(
            lambda: any(run.object is None for run in recorder.of("b", "default", "p2")),
            within=timedelta(seconds=15),
        )
        await eventually(lambda: len(events) == 1, within=WITHIN)
    finally:
        await client.close()


Got: TypeAlias = tuple[str, dict[str, object], dict[str, str]]
"""Subject, body and headers."""


def ids(messages: list[Got]) -> set[str]:
    return {headers["ce-id"] for _, _, headers in messages}


async def stored(rig: Rig, subject: str) -> int:
    client = await nats_py.connect(rig.shared.nats_url)
    try:
        info = await client.jetstream().stream_info(STREAM, subjects_filter=subject)
    finally:
        await client.close()
    return sum((info.state.subjects or {}).values())


async def test_t1_a_plain_subscriber_gets_each_change_once_and_reads_it_without_the_sdk(
    open_rig: OpenRig,
) -> None:
    import msgpack  # noqa: PLC0415 -- the point: nothing of fleetbus is needed

    rig, _ = await start(open_rig)
    messages: list[Got] = []

    async def note(message: Msg) -> None:
        body = cast("dict[str, object]", msgpack.unpackb(message.data))
        messages.append((message.subject, body, dict(message.headers or {})))

    client = await nats_py.connect(rig.shared.nats_url)
    try:
        await client.subscribe("fleetbus.events.b.core.pods.default.nginx.*", cb=note)
        await client.flush()
        b = rig.clusters["b"]
        b.create(PODS, pod("nginx"), "default")
        b.patch(PODS, "default", "nginx", {"metadata": {"labels": {"x": "y"}}})
        b.delete(PODS, "default", "nginx")
        await eventually(lambda: len(ids(messages)) >= 4, within=WITHIN)
        # The end of a pod is a change before it is a deletion.
        await stays(4, lambda: len(ids(messages)), timedelta(seconds=0.5))
    finally:
        await client.close()
    # A change that is published again, by a second watcher or because an acknowledgement was late,
    # has the same id, and is kept once by the stream.
    bodies = {(headers["ce-id"], subject) for subject, _, headers in messages}
    assert len(bodies) == 4
    assert await stored(rig, "fleetbus.events.b.core.pods.default.nginx.*") == 4
    verbs = dict.fromkeys(subject.rpartition(".")[2] for subject, _, _ in messages)
    assert list(verbs) == ["added", "modified", "deleted"]
    _, body, headers = messages[0]
    assert (body["cluster"], body["namespace"], body["name"]) == ("b", "default", "nginx")
    assert headers["ce-specversion"] == "1.0"


@ONE_OF_EACH
async def test_t1_with_two_watchers_the_stream_has_each_change_once(open_rig: OpenRig) -> None:
    rig, recorder = await start(open_rig)
    b = rig.clusters["b"]
    alone = b.open_watches
    rig.start_watcher("b", task="peer", replica="b-1")
    await eventually(lambda: b.open_watches == 2 * alone, within=WITHIN)
    recorder.runs.clear()
    b.create(PODS, pod("nginx"), "default")
    b.patch(PODS, "default", "nginx", {"metadata": {"labels": {"x": "y"}}})
    b.delete(PODS, "default", "nginx")
    await eventually(lambda: [run.object for run in recorder.runs[-1:]] == [None], within=WITHIN)
    await asyncio.sleep(0.5)  # by now the other watcher has published it, too
    client = await nats_py.connect(rig.shared.nats_url)
    try:
        subject = "fleetbus.events.b.core.pods.default.nginx.*"
        subscription = await client.jetstream().pull_subscribe(subject, stream=STREAM)
        messages = await subscription.fetch(10, timeout=0.5)
    finally:
        await client.close()
    verbs = [message.subject.rpartition(".")[2] for message in messages]
    assert verbs == ["added", "modified", "modified", "deleted"]  # of the pod's end two
    assert len(recorder.runs) <= 4


@pytest.mark.slow
async def test_t1_one_cluster_without_hub_features_is_a_fleet(open_rig: OpenRig) -> None:
    rig = await open_rig("only")
    only = rig.clusters["only"]
    for name in ("p1", "p2"):
        only.create(PODS, pod(name), "default")
    controller = Controller("helloworld")
    controller.watch(PODS)
    recorder = Recorder(controller, PODS)
    rig.start_reconciler(controller)
    rig.start_watcher("only")
    both = {("only", "default", "p1"), ("only", "default", "p2")}
    await eventually(lambda: recorder.keys() == both, within=WITHIN)
    await rig.quiet("helloworld")
    recorder.runs.clear()
    only.create(PODS, pod("nginx"), "default")
    for number in range(6):
        only.patch(PODS, "default", "nginx", {"metadata": {"labels": {"turn": str(number)}}})

    def has_turn(turn: str) -> bool:
        runs = recorder.of("only", "default", "nginx")
        labels = ((runs[-1].object if runs else None) or {}).get("metadata", {}).get("labels", {})
        return labels.get("turn") == turn

    await eventually(lambda: has_turn("5"), within=WITHIN)
    assert 1 <= len(recorder.runs) <= 7
    await rig.quiet("helloworld")
    recorder.runs.clear()
    recorder.pause = 0.3
    for number in range(6, 12):
        only.patch(PODS, "default", "nginx", {"metadata": {"labels": {"turn": str(number)}}})
        await asyncio.sleep(0.02)  # the pace of the changes
    await eventually(lambda: has_turn("11"), within=WITHIN)
    assert len(recorder.runs) <= 3
    await rig.quiet("helloworld")
    recorder.pause = 0.0
    recorder.runs.clear()
    only.delete(PODS, "default", "p1")
    # A pod ends in two changes, and each may cause a run.
    await eventually(lambda: any(run.object is None for run in recorder.runs), within=WITHIN)
    await rig.quiet("helloworld")
    assert recorder.runs[-1].object is None
    assert len(recorder.runs) <= 2
    assert recorder.keys() == {("only", "default", "p1")}
