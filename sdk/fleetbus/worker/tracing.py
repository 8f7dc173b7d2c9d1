"""OpenTelemetry spans of a change: consume → enqueue → reconcile → write.

Only the API is a dependency. Spans are recorded and exported only if the program that hosts the
controllers installs and configures an SDK; until then none are created, and the trace context of an
event is passed on unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import ProxyTracerProvider, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fleetbus.process.error_text import describe, render
from fleetbus.process.log_levels import LEVELS
from fleetbus.reconcile import Outcome
from fleetbus.run.current import current_run
from fleetbus.workqueue.queue import Lease
from fleetbus_proto.events import Event

log = structlog.get_logger()

HEADER: Final = "traceparent"
_SECRETS: Final = "secrets"
_UNTRACED: Final = nullcontext()
_tracer: Final = trace.get_tracer("fleetbus")
_format: Final = TraceContextTextMapPropagator()


def is_traced() -> bool:
    """Whether an SDK is configured, so that spans are worth their cost."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


class Consumed:
    """The spans of one batch, from its arrival until it is enqueued.

    They are created when it is enqueued, with the time of its arrival: a batch that fails before
    that, and is tried again, leaves no span behind that nobody ends.

    Args:
        controller: who consumes it.
        events: the batch.
        traces: the `traceparent` of each event, or empty.
    """

    def __init__(self, controller: str, events: Sequence[Event], traces: Sequence[str]) -> None:
        self._controller = controller
        self._events = events
        self._traces = list(traces)
        self._arrived = time.time_ns()

    @contextmanager
    def enqueuing(self) -> Generator[Sequence[str]]:
        """Around the enqueueing; yields the traces that the queue carries to the runs."""
        if not is_traced():
            yield self._traces
            return
        with ExitStack() as stack:
            inner: list[Span] = []
            for event, parent in zip(self._events, self._traces, strict=True):
                outer = self._consume(event, parent)
                stack.callback(outer.end)
                inside = trace.set_span_in_context(outer)
                inner.append(_tracer.start_span("fleetbus.enqueue", context=inside))
                stack.callback(inner[-1].end)
            try:
                yield [_trace_of(span) for span in inner]
            except Exception as e:
                for span in inner:
                    _note(span, e, is_quiet=False)
                raise

    def _consume(self, event: Event, parent: str) -> Span:
        attributes = {
            "fleetbus.controller": self._controller,
            "fleetbus.cluster": event.cluster,
            "fleetbus.resource": event.resource_key,
            "fleetbus.namespace": event.namespace,
            "fleetbus.name": event.name,
            "fleetbus.verb": event.verb.value,
        }
        return _tracer.start_span(
            "fleetbus.consume",
            context=_context(parent),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            start_time=self._arrived,
        )


def reconciling(lease: Lease, run_id: str) -> AbstractContextManager[Span | None]:
    """Around one run: its span, a child of what woke it, is the current one.

    Args:
        lease: of the request; it has the trace that the queue carried.
        run_id: as in the logs.
    """
    return _reconciling(lease, run_id) if is_traced() else _UNTRACED


@contextmanager
def _reconciling(lease: Lease, run_id: str) -> Generator[Span]:
    attributes: Mapping[str, str | int] = {
        "fleetbus.controller": lease.request.controller,
        "fleetbus.cluster": lease.request.cluster,
        "fleetbus.namespace": lease.request.namespace,
        "fleetbus.name": lease.request.name,
        "fleetbus.attempt": lease.attempt + 1,
        "fleetbus.reconcile_id": run_id,
    }
    with _tracer.start_as_current_span(
        "fleetbus.reconcile",
        context=_context(lease.trace),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


def note_outcome(span: Span | None, outcome: Outcome) -> None:
    """Set how a run ended on its span, if it has one."""
    if span is not None:
        span.set_attribute("fleetbus.outcome", outcome)


def note_failure(error: BaseException, *, is_quiet: bool = False) -> None:
    """Record what the current run raised on its span.

    Args:
        error: any.
        is_quiet: leave all texts out: they may quote a Secret.
    """
    _note(trace.get_current_span(), error, is_quiet=is_quiet)


def _note(span: Span, error: BaseException, *, is_quiet: bool) -> None:
    """As `record_exception`, but with the text cut and without secrets."""
    if not span.is_recording():
        return
    kind = type(error)
    attributes = {
        "exception.type": f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": describe(error, is_quiet=is_quiet),
        "exception.stacktrace": render(error, is_quiet=is_quiet),
    }
    span.add_event("exception", attributes)
    span.set_status(Status(StatusCode.ERROR, describe(error, is_quiet=is_quiet)))


@contextmanager
def writing(cluster: str, method: str, path: str) -> Generator[None]:
    """Around one write to an API server: its span, a child of the run's."""
    run = current_run()
    if run and LEVELS.shows_debug(run.request.controller):
        log.debug("request_sent", to=cluster, method=method, path=path)
    if not is_traced():
        yield
        return
    attributes = {
        "fleetbus.cluster": cluster,
        "http.request.method": method,
        "url.path": path,
    }
    with _tracer.start_as_current_span(
        f"fleetbus.write {method}",
        kind=SpanKind.CLIENT,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except Exception as e:
            _note(span, e, is_quiet=_SECRETS in path.split("/"))
            raise


def _context(parent: str) -> Context:
    """The context of a `traceparent`; without one a new trace begins."""
    return _format.extract({HEADER: parent} if parent else {}, context=Context())


def _trace_of(span: Span) -> str:
    carrier: dict[str, str] = {}
    _format.inject(carrier, trace.set_span_in_context(span))
    return carrier.get(HEADER, "")
