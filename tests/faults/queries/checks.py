"""The rules that the records of the query API's campaign must obey; offline, as often as one likes.

A check is a function of `QueryRecords` that yields violations; `CHECKS` lists them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final

from faults.queries.objects import Objects, Seen, selected
from faults.queries.records import QueryRecords, Span, seen_from
from faults.queries.settings import SILENT_SECONDS, ClientPlan
from faults.rig.records import Json, Violation, settled_within

INFORMER_BACKOFF_SECONDS: Final = 60
"""client-go waits for up to 30 s and as much again by chance after an error, whatever we do."""
ANSWER_SECONDS: Final = 20.0
"""So long at most a watch stays open after the store was wiped: longer than any fault lasts."""
_SHOWN: Final = 5

Check = Callable[[QueryRecords], Iterable[Violation]]


# --- at the end ---------------------------------------------------------------------------------


def check_caches(records: QueryRecords) -> Iterator[Violation]:
    """I1: what each client holds equals the API servers, both ways; and so does what it got."""
    for plan in records.plans:
        truth = selected(records.final, plan)
        yield from _differences(f"{plan.name}-cache", truth, records.caches[plan.name])
        yield from _differences(f"{plan.name}-events", truth, fold(records.clients[plan.name]))


def fold(lines: Iterable[Json]) -> Objects:
    """The objects that follow from what a client got.

    kubectl and a stream of events begin with an empty cache each time; an informer compares a list
    with what it has, and calls its handlers for what differs.
    """
    objects: Objects = {}
    for line in lines:
        if line["kind"] == "list" and "objects" in line:
            objects = {key: seen_from(value) for key, value in line["objects"].items()}
        elif line["kind"] == "list" and line.get("replaces", False):
            objects = {}
        elif line["kind"] == "event" and line["type"] == "DELETED":
            objects.pop(line["key"], None)
        elif line["kind"] == "event":
            objects[line["key"]] = seen_from(line["seen"])
    return objects


def _differences(subject: str, truth: Objects, cached: Objects) -> Iterator[Violation]:
    groups = {
        "lost": truth.keys() - cached.keys(),
        "extra": cached.keys() - truth.keys(),
        "old": {key for key in truth.keys() & cached.keys() if truth[key] != cached[key]},
    }
    for kind, keys in groups.items():
        if keys:
            examples = [
                f"{key!r} {truth.get(key)} {cached.get(key)}" for key in sorted(keys)[:_SHOWN]
            ]
            yield Violation(f"{subject}-{kind}", f"{len(keys)} objects, like {'; '.join(examples)}")


def check_settled(records: QueryRecords) -> Iterator[Violation]:
    """I1: every client agrees soon after the last fault."""
    agreed: dict[str, float] = records.meta["agreed"]
    for plan in records.plans:
        bound = settled_within(records.meta)
        bound += INFORMER_BACKOFF_SECONDS if plan.kind == "informer" else 0
        took = agreed.get(plan.name)
        if took is None or took > bound:
            late = "never" if took is None else f"{took:.0f} s after the last fault"
            yield Violation("not-settled", f"{plan.name}: {late}, not within {bound:.0f} s")


# --- while it ran -------------------------------------------------------------------------------


def check_order(records: QueryRecords) -> Iterator[Violation]:
    """A5: no client sees an object go back in time, but where the store was wiped just before.

    The writes of one name are numbered, and a deletion comes after the state that it deletes. A
    snapshot that is being filled again passes through older states: a list may show one then, so
    each object of a cache may go back once per list that begins within that time. It may lack
    objects, too, which an informer calls deleted; they come back as they were.
    """
    within = settled_within(records.meta)
    for plan in records.plans:
        order = _Order(records.wipes, within)
        for line in records.clients[plan.name]:
            order.take(line)
        if order.found:
            examples = "; ".join(order.found[:_SHOWN])
            yield Violation(
                "back-in-time", f"{plan.name}: {len(order.found)} times, like {examples}"
            )


class _Order:
    """The newest state of each object that one client has seen.

    Args:
        wipes: of the store.
        within: seconds after a wipe in which a list may be older than what was seen.
    """

    def __init__(self, wipes: list[Span], within: float) -> None:
        self._wipes = wipes
        self._within = within
        self._newest: dict[str, float] = {}
        self._may_fall: set[str] = set()
        self.found: list[str] = []

    def take(self, line: Json) -> None:
        if line["kind"] in ("list", "answered"):
            self._may_fall = {*self._newest} if self._is_refilled(line["t"]) else set()
            for key, value in line.get("objects", {}).items():
                self._see(line["t"], key, seen_from(value).number)
        elif line["kind"] == "event":
            seen_state: Seen = seen_from(line["seen"])
            is_gone = line["type"] == "DELETED"
            is_unlisted = is_gone and line["key"] in self._may_fall
            if seen_state.number and not is_unlisted:  # of some deletions only the name is known
                self._see(line["t"], line["key"], seen_state.number + is_gone / 2)

    def _is_refilled(self, t: float) -> bool:
        return any(wipe.begin <= t <= wipe.end + self._within for wipe in self._wipes)

    def _see(self, t: float, key: str, count: float) -> None:
        newest = self._newest.get(key, 0)
        if count < newest and key not in self._may_fall:
            self.found.append(f"{key!r} from {newest} to {count} at {t:.1f}")
        self._may_fall.discard(key)
        self._newest[key] = count


def check_losses(records: QueryRecords) -> Iterator[Violation]:
    """A5, P13: after the store was wiped every watch ends, and no version from before is good."""
    busy = settled_within(records.meta) / settled_within({})
    for plan in records.plans:
        for watch in watches_of(records.clients[plan.name]):
            for wipe in records.wipes:
                if watch.begin < wipe.begin and watch.end > wipe.end + ANSWER_SECONDS * busy:
                    yield Violation(
                        "loss-unanswered",
                        f"{plan.name}: a watch went on from {watch.begin:.1f} to {watch.end:.1f},"
                        f" through the loss of the store at {wipe.begin:.1f}",
                    )
                elif watch.got < wipe.begin and watch.begin > wipe.end and watch.is_resumed:
                    yield Violation(
                        "version-of-lost-store",
                        f"{plan.name}: resumed at {watch.begin:.1f} from a version of"
                        f" {watch.got:.1f}, before the loss of the store at {wipe.begin:.1f}",
                    )


class Watch:
    """One watch of a client.

    Attributes:
        begin: when it was answered.
        end: when it ended, or the records do.
        got: when its client got the version that it goes on from; infinite without one.
        is_resumed: whether something other than 410 came of a version.
        events: the times of its events.
    """

    def __init__(self, begin: float, end: float, received: float) -> None:
        self.begin, self.end, self.got = begin, end, received
        self.is_resumed = False
        self.events: list[float] = []


def watches_of(lines: list[Json]) -> Iterator[Watch]:
    """The watches of a client, in order."""
    received, watch = float("inf"), None
    for line in lines:
        kind, t = line["kind"], line["t"]
        if kind == "open":
            if watch is not None:  # an informer opens the next before it closes the last
                watch.end = t
                yield watch
            watch = Watch(t, lines[-1]["t"], received if line["version"] else float("inf"))
        elif kind in ("event", "bookmark", "list", "answered"):
            received = t
            if watch is not None and kind in ("event", "bookmark"):
                watch.is_resumed = True
                watch.events += [t] if kind == "event" else []
        elif watch is not None:
            watch.end = t
            yield watch
            watch = None
    if watch is not None:
        yield watch


def check_silence(records: QueryRecords) -> Iterator[Violation]:
    """A6: no watch is silent while its objects change and nothing is broken."""
    calms = [span for span in records.quiet if span.end - span.begin >= SILENT_SECONDS]
    for plan in records.plans:
        for watch in watches_of(records.clients[plan.name]):
            for silence in _silences(watch, calms):
                if changed := sum(_changes(records, plan, silence)):
                    yield Violation(
                        "silent",
                        f"{plan.name}: nothing from {silence.begin:.1f} to {silence.end:.1f},"
                        f" after {changed} writes that it should have seen",
                    )


def _silences(watch: Watch, quiet: list[Span]) -> Iterator[Span]:
    """The times without an event of a watch in which nothing was broken."""
    for begin, end in pairwise([watch.begin, *watch.events, watch.end]):
        for span in quiet:
            yield Span(max(begin, span.begin), min(end, span.end))


def _changes(records: QueryRecords, plan: ClientPlan, silence: Span) -> Iterator[int]:
    """Return how many writes of each cluster were early enough to be seen."""
    for cluster in plan.clusters:
        times = records.commits[cluster]
        early = bisect_right(times, silence.end - SILENT_SECONDS)
        yield max(0, early - bisect_right(times, silence.begin))


def check_statuses(records: QueryRecords) -> Iterator[Violation]:
    """No fault is answered as a mistake of ours, or of the client."""
    for plan in records.plans:
        lines = records.clients[plan.name]
        statuses = {line["status"] for line in lines if line["kind"] == "refused"}
        if wrong := sorted(statuses - {404, 429, 503}):  # 404: no cluster is known to a new store
            yield Violation("status", f"{plan.name}: {wrong}")


def check_ended(records: QueryRecords) -> Iterator[Violation]:
    """A fault of others ends no process of ours."""
    for line in records.log:
        if line["kind"] == "ended":
            yield Violation("process-ended", f"{line['process']}: {line['words']}")


CHECKS: Final[tuple[Check, ...]] = (
    check_caches,
    check_settled,
    check_order,
    check_losses,
    check_silence,
    check_statuses,
    check_ended,
)


def check_queries(records: QueryRecords) -> list[Violation]:
    """All violations."""
    return [violation for each in CHECKS for violation in each(records)]
