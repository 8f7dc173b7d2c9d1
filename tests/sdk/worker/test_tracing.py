"""Spans: from the event over the queue to the write, and nothing without an SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode
from redis.asyncio import Redis

from fleetbus.controller.controller import Controller
from fleetbus.errors import Invalid, SnapshotBehind
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from fleetbus.worker import tracing
from fleetbus.worker.worker import Patience
from fleetbus.workqueue import Add, RedisQueue
from fleetbus_proto.headers import traceparent
from support.eventually import eventually
from support.rigs.fleet import Rig
from support.rigs.worker import FIRST, POLICY, counted, working
from support.stores.snapshot import Source

MAPS = "v1/configmaps"
TRACE = traceparent("some-event")
EU = Source(cluster="eu1")


@pytest.fixture
async def queue(redis: Redis) -> AsyncGenerator[RedisQueue]:
    redis_queue = RedisQueue(redis, "copier", policy=POLICY)
    yield redis_queue
    await redis_queue.aclose()


class Counted(SimpleSpanProcessor):
    """Knows how many spans have begun and not ended."""

    open = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.open += 1
        super().on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        self.open -= 1
        super().on_end(span)


@pytest.fixture
def counted_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> Generator[tuple[InMemorySpanExporter, Counted]]:
    """An SDK as a user would configure it, for one test."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    counter = Counted(exporter)
    provider.add_span_processor(counter)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("fleetbus"))
    yield exporter, counter
    provider.shutdown()


@pytest.fixture
def spans(counted_spans: tuple[InMemorySpanExporter, Counted]) -> InMemorySpanExporter:
    return counted_spans[0]


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def context_of(span: ReadableSpan) -> SpanContext:
    assert span.context is not None
    return span.context


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    return child.parent is not None and child.parent.span_id == context_of(parent).span_id


def parents(spans: InMemorySpanExporter, name: str, child: ReadableSpan) -> list[ReadableSpan]:
    return [span for span in named(spans, name) if is_child(child, span)]


async def test_a_change_is_one_trace_from_the_event_to_the_write(
    open_rig: Callable[..., Awaitable[Rig]], spans: InMemorySpanExporter
) -> None:
    labeler = Controller("labeler")
    labeler.watch(MAPS, namespaces=["default"])

    @labeler.reconcile
    async def label(request: Request, fleet: Fleet) -> None:
        change = {"metadata": {"labels": {"seen": "yes"}}}
        await fleet.cluster("a").patch(MAPS, request.namespace, request.name, change)

    rig = await open_rig("a", resources=(MAPS,))
    rig.start_reconciler(labeler)
    rig.start_watcher("a")
    await rig.synced("core/configmaps")
    await rig.quiet("labeler")  # or the run comes from the full enqueue, which has no trace
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "m"}}, "default")
    writes = await eventually(lambda: named(spans, "fleetbus.write PATCH"), timedelta(seconds=20))
    run = await eventually(lambda: named(spans, "fleetbus.reconcile"), timedelta(seconds=20))
    assert is_child(writes[0], run[0])
    # The batch of the event may be acknowledged after the run has ended.
    [enqueue] = await eventually(lambda: parents(spans, "fleetbus.enqueue", run[0]))
    [consume] = await eventually(lambda: parents(spans, "fleetbus.consume", enqueue))
    # The event's own `traceparent` is the root, so all of it is in the trace of the event.
    assert consume.parent is not None
    assert consume.parent.trace_id == context_of(writes[0]).trace_id
    attributes: Any = dict(run[0].attributes or {})
    assert attributes.pop("fleetbus.reconcile_id")
    assert attributes == {
        "fleetbus.controller": "labeler",
        "fleetbus.cluster": "a",
        "fleetbus.namespace": "default",
        "fleetbus.name": "m",
        "fleetbus.attempt": 1,
        "fleetbus.outcome": "done",
    }
    assert dict(writes[0].attributes or {})["fleetbus.cluster"] == "a"


async def test_a_run_that_fails_says_why_in_its_span_and_user_spans_are_inside(
    queue: RedisQueue, valkey_url: str, spans: InMemorySpanExporter
) -> None:
    tries: list[int] = []

    async def act(_request: Request, _fleet: Fleet) -> None:
        tries.append(1)
        with trace.get_tracer_provider().get_tracer("mine").start_as_current_span("my work"):
            if len(tries) == 1:
                raise ValueError("boom")

    async with working(queue, valkey_url, act):
        await queue.add([Add(FIRST, trace=TRACE)])
        await eventually(lambda: len(named(spans, "fleetbus.reconcile")) == 2)
    failed, done = named(spans, "fleetbus.reconcile")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "ValueError: boom"
    assert done.status.status_code is StatusCode.UNSET
    assert is_child(named(spans, "my work")[0], failed)
    trace_id = int(TRACE.split("-")[1], 16)
    assert {context_of(failed).trace_id, context_of(done).trace_id} == {trace_id}


def fail_to_enqueue(consumed: tracing.Consumed, counter: Counted, spans: int) -> None:
    with consumed.enqueuing() as carried:
        assert counter.open == spans
        assert carried[-1].split("-")[1] == TRACE.split("-")[1]
        raise ValueError("away: password=S3CRET")


def test_a_batch_that_is_not_applied_or_not_enqueued_leaves_no_open_span(
    counted_spans: tuple[InMemorySpanExporter, Counted],
) -> None:
    exporter, counter = counted_spans
    events = [EU.added("p1", 1), EU.added("p2", 2)]
    tracing.Consumed("copier", events, ["", TRACE])  # and then the store is away
    assert counter.open == 0
    before = time.time_ns()
    consumed = tracing.Consumed("copier", events, ["", TRACE])
    with pytest.raises(ValueError, match="away"):
        fail_to_enqueue(consumed, counter, 2 * len(events))
    assert counter.open == 0
    failed = named(exporter, "fleetbus.enqueue")
    assert {span.status.description for span in failed} == {"ValueError: away: password=***"}
    arrived = named(exporter, "fleetbus.consume")[0].start_time
    assert arrived is not None
    assert before <= arrived <= time.time_ns()


@pytest.mark.parametrize("way", ["stopped", "lost", "behind", "let out"])
async def test_every_way_a_run_may_end_ends_its_spans_and_says_how(
    queue: RedisQueue,
    redis: Redis,
    valkey_url: str,
    counted_spans: tuple[InMemorySpanExporter, Counted],
    way: str,
) -> None:
    exporter, counter = counted_spans
    outcomes = {
        "stopped": "stopped",
        "lost": "lease_lost",
        "behind": "retried",
        "let out": "retried",
    }

    async def act(request: Request, _fleet: Fleet) -> None:
        if way == "behind":
            raise SnapshotBehind("it is")
        if way == "let out":
            raise asyncio.CancelledError
        if way == "lost":
            await redis.flushall()
        with tracing.writing(request.cluster, "PATCH", "/api"):
            is_in.set()
            await asyncio.Event().wait()

    is_in = asyncio.Event()
    drain = timedelta(milliseconds=10)
    async with working(queue, valkey_url, act, patience=Patience(drain=drain, lag=timedelta())):
        await queue.add([Add(FIRST)])
        if way == "stopped":
            await is_in.wait()
        else:
            await eventually(lambda: named(exporter, "fleetbus.reconcile"))
    first = named(exporter, "fleetbus.reconcile")[0]
    assert dict(first.attributes or {})["fleetbus.outcome"] == outcomes[way]
    assert counter.open == 0


async def test_a_write_that_fails_says_why_without_quoting_a_secret(
    spans: InMemorySpanExporter,
) -> None:
    for path in ("/api/v1/namespaces/n/configmaps/c", "/api/v1/namespaces/n/secrets/s"):
        with pytest.raises(Invalid), tracing.writing("a", "PATCH", path):
            raise Invalid(422, "Invalid", "data.word: it is too short")
    descriptions = [span.status.description for span in named(spans, "fleetbus.write PATCH")]
    assert descriptions == ["Invalid: data.word: it is too short (422 Invalid)", "Invalid"]


async def test_without_an_sdk_the_trace_is_carried_and_nothing_is_recorded(
    queue: RedisQueue, valkey_url: str
) -> None:
    seen: list[trace.Span] = []

    async def act(_request: Request, _fleet: Fleet) -> None:
        seen.append(trace.get_current_span())

    assert not tracing.is_traced()
    with tracing.Consumed("copier", [], [TRACE]).enqueuing() as carried:
        assert carried == [TRACE]
    before = counted("done")
    async with working(queue, valkey_url, act):
        await queue.add([Add(FIRST, trace=TRACE)])
        await eventually(lambda: counted("done") == before + 1)
    assert not seen[0].is_recording()
