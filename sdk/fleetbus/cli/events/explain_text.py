"""What `fleetbus explain` says: a page, and one sentence for each controller and for the whole."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from fleetbus.cli.human_time import parse_time, render_span
from fleetbus.cli.table import render_table
from fleetbus.reconcile import Outcome
from fleetbus_proto.versions import is_comparable, version_key

View: TypeAlias = dict[str, Any]

_HEAD: Final = ("SEQUENCE", "VERB", "RESOURCEVERSION", "OBSERVED", "ON THE BUS AFTER")
_LONG_WAIT: Final = 5.0
_MINUTE: Final = 60.0
_MILLISECOND: Final = 0.001
_NEVER: Final = 86_400.0
_UNCONCERNED: Final = (
    "has nothing to do with it: a filter leaves it out, or it wakes another request"
)
_NO_RUN: Final = "has no run of it on record, and it is not in the queue"
_ORDINALS: Final = {1: "st", 2: "nd", 3: "rd"}


def with_summary(one: View, snapshot: View, *, is_mapped: bool = False) -> View:
    """Add the sentence to what is known of one request.

    Args:
        one: a request of a controller.
        snapshot: what the snapshot has of the object that is explained.
        is_mapped: whether the object wakes this request through a `map` or as an owned object; the
            request names something else then, and the object's version says nothing about it.
    """
    says = _describe(one, snapshot, is_mapped=is_mapped)
    return {**one, "mapped": is_mapped, "says": says}


def summarize(view: View) -> str:
    """Where the object stands, in one sentence: what is nearest to the cause of a delay."""
    snapshot, changes = view["snapshot"], view["changes"]
    if not snapshot["complete"]:
        return f"the snapshot cannot be relied on: {snapshot['reason']}"
    last = changes[-1]["resourceVersion"] if changes else ""
    if _is_newer(last, snapshot["resourceVersion"]):
        return (
            "the last change is on the bus, and not in the snapshot yet: is a reconciler running?"
        )
    open_ones = [one for one in view["controllers"] if not _is_at_rest(one)]
    if open_ones:
        return "; ".join(f"{_who(one, ', for {}, ')}{one['says']}" for one in open_ones)
    if view["controllers"]:
        return "nothing is to be done"
    return "no controller watches this resource"


def _is_at_rest(one: Mapping[str, Any]) -> bool:
    last = one["lastRun"]
    return one["state"] == "idle" and (last is None or last["outcome"] != Outcome.GAVE_UP)


def _who(one: View, form: str) -> str:
    """The controller, and the request if it names something else than the object."""
    if not one["mapped"]:
        return f"{one['controller']} "
    request = one["request"]
    place = "/".join(part for part in (request["namespace"], request["name"]) if part)
    return _printable(one["controller"] + form.format(f"{place} in {request['cluster']}"))


def _describe(one: View, snapshot: View, *, is_mapped: bool) -> str:
    state = one["state"]
    if state == "processing":
        return _describe_processing(one)
    if state == "quarantined":
        return (
            f"has it in quarantine, for the {_ordinal(one['quarantines'])} time, because its"
            f" workers died; next try in {_span(max(0.0, one['quarantineSeconds']))}"
        )
    if state == "blocked":
        try_in = one["breakerSeconds"]
        probe = "a try is under way" if try_in > _NEVER else f"next try in {_span(try_in)}"
        return f"waits for the cluster, which does not answer: {probe}"
    if state == "ready":
        return _describe_ready(one)
    if state == "delayed":
        return _describe_delayed(one)
    return _describe_idle(one, snapshot, is_mapped=is_mapped)


def _describe_processing(one: View) -> str:
    worker = one["worker"] or "a worker"
    if one["leaseSeconds"] < 0:
        return f"was being run by {worker}, which is gone; another one takes over soon"
    again = "" if one["waitingSeconds"] is None else ", and then once more"
    return (
        f"is being run by {worker}, due {_span(one['runningSeconds'])} ago, with a lease for"
        f" {_span(one['leaseSeconds'])}{again}"
    )


def _describe_ready(one: View) -> str:
    waited = one["waitingSeconds"]
    hint = ": is a worker running?" if waited > _LONG_WAIT else ""
    return f"has it in its queue for {_span(waited)} ({one['priority']}){hint}"


def _describe_delayed(one: View) -> str:
    due = one["dueInSeconds"]
    if due < 0 and _rests(one):
        again = "its next run" if not one["failures"] else f"{_ordinal(one['failures'])} failure"
        return f"is overdue by {_span(-due)}: is a worker running? ({again}{_because(one)})"
    soon = _span(max(0.0, due))
    if not one["failures"]:
        return f"runs again in {soon}, as it asked for"
    return (
        f"waits for its back-off: {_ordinal(one['failures'])} failure, next try in"
        f" {soon}{_because(one)}"
    )


def _rests(one: View) -> bool:
    """Whether nothing has run for longer than a worker takes to notice what is due."""
    last = one["lastRun"]
    ended = parse_time(last["endedAt"]) if last is not None else None
    return ended is None or (datetime.now(UTC) - ended).total_seconds() > _LONG_WAIT


def _describe_idle(one: View, snapshot: View, *, is_mapped: bool) -> str:
    last, read = one["lastRun"], one["reconciled"]
    if last is not None and last["outcome"] == Outcome.GAVE_UP:
        return f"gave up {_ago(last)}{_because(one)}; the next change starts it anew"
    if last is not None and last["outcome"] == Outcome.CLUSTER_LEFT:
        return f"ended {_ago(last)}: the cluster had left the fleet"
    if read is not None and not _is_behind(read, snapshot):
        return "has reconciled the newest version"
    if last is not None and Outcome(last["outcome"]).is_success:
        return f"ended well {_ago(last)}"
    return _NO_RUN if is_mapped else _UNCONCERNED


def _because(one: View) -> str:
    last = one["lastRun"]
    return f": {last['error']}" if last is not None and last["error"] else ""


def _is_behind(read: Mapping[str, Any], snapshot: Mapping[str, Any]) -> bool:
    if snapshot["incarnation"] is None or snapshot["incarnation"] < read["incarnation"]:
        return False
    if snapshot["incarnation"] > read["incarnation"]:
        return True
    return _is_newer(snapshot["resourceVersion"], read["resourceVersion"])


def _is_newer(one: str, other: str) -> bool:
    if not (is_comparable(one) and is_comparable(other)):
        return False  # versions of aggregated APIs may be any text
    return version_key(one) > version_key(other)


# --- the page -------------------------------------------------------------------------------------


def render(view: View) -> str:
    """The whole as text; the sentence stands at the end."""
    place = "/".join(part for part in (view["namespace"], view["name"]) if part)
    blocks = [f"{view['resource']} {place} in {view['cluster']}", _changes(view), _snapshot(view)]
    if view["owner"]:
        blocks.append(_owner(view["owner"]))
    if others := [one["controller"] for one in view["controllers"] if is_unconcerned(one)]:
        blocks.append(f"controller {', '.join(others)}: {_UNCONCERNED}")
    blocks += [_controller(one) for one in view["controllers"] if not is_unconcerned(one)]
    return "\n\n".join([*blocks, f"where it stands: {view['says']}"])


def is_unconcerned(one: View) -> bool:
    """Whether a controller has nothing to do with the object's own request."""
    return one["says"] == _UNCONCERNED and one["lastRun"] is None


def _changes(view: View) -> str:
    if view["bus"]:
        return f"bus: {view['bus']}"
    if not view["changes"]:
        return f"bus: no change in the last {render_span(view['since'])}"
    rows = [
        (
            str(one["sequence"]),
            one["verb"],
            one["resourceVersion"],
            one["observedAt"],
            _span(one["storedAfterSeconds"]),
        )
        for one in view["changes"]
    ]
    return render_table(_HEAD, rows)


def _snapshot(view: View) -> str:
    one = view["snapshot"]
    version = f" {one['resourceVersion']}" if one["resourceVersion"] else ""
    lacks = f" ({one['degraded']})" if one["degraded"] else ""
    reported = (
        "its API server has not answered yet"
        if one["ageSeconds"] is None
        else f"its API server answered {_span(one['ageSeconds'])} ago"
    )
    return (
        f"snapshot: {one['state']}{version}{lacks}; the resource is {one['freshness']}, {reported}"
    )


def _owner(owner: View) -> str:
    place = "/".join(part for part in (owner["namespace"], owner["name"]) if part)
    told = f"{owner['kind']} {place} in {owner['cluster']}"
    return _printable(f"owner: {told}; a controller that keeps this object runs for its owner")


def _controller(one: View) -> str:
    lines = [f"controller {_who(one, ', which runs for {}')}".rstrip() + f": {one['says']}"]
    if one.get("moreRequests"):
        lines.append("  it wakes more other requests than are kept; see `fleetbus queue`")
    if one["reconciled"]:
        lines.append(f"  reconciled: {one['reconciled']['resourceVersion']}")
    last = one["lastRun"]
    if last is not None:
        by = f" by {last['worker']}" if last["worker"] else ""
        lines.append(
            f"  last run: {last['outcome']} {_ago(last)}{by}, attempt {last['attempt']}:"
            f" queued {last['queuedAt']}, waited {_span(last['waitedSeconds'])},"
            f" ran {_span(last['ranSeconds'])}"
        )
        if last["error"]:
            lines.append(f"  error: {_printable(last['error'])}")
    return "\n".join(lines)


def _ago(last: Mapping[str, Any]) -> str:
    ended = parse_time(last["endedAt"])
    if ended is None:
        return "some time ago"
    return f"{render_span((datetime.now(UTC) - ended).total_seconds())} ago"


def _span(seconds: float) -> str:
    if 0 <= seconds < _MILLISECOND:
        return "<1 ms"
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < _MINUTE else render_span(seconds)


def _ordinal(number: int) -> str:
    teen = 10 < number % 100 < 20  # noqa: PLR2004 -- 11th, 12th, 13th
    return f"{number}{'th' if teen else _ORDINALS.get(number % 10, 'th')}"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
