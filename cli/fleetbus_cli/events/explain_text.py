"""Renders `fleetbus explain`: a page, and a summary of each request and of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from fleetbus.process.human_time import parse_time, render_duration
from fleetbus.process.printer import printable
from fleetbus.reconcile import Outcome
from fleetbus_cli.table import render_table
from fleetbus_proto.versions import is_comparable, version_key

View: TypeAlias = dict[str, Any]

_HEAD: Final = ("SEQUENCE", "VERB", "RESOURCEVERSION", "OBSERVED", "BUS DELAY")
_LONG_WAIT: Final = 5.0
_MINUTE: Final = 60.0
_MILLISECOND: Final = 0.001
_NEVER: Final = 86_400.0
_UNCONCERNED: Final = "not affected: excluded by a filter, or mapped to another request"
_NO_OBJECT: Final = "no such object; check NAMESPACE/NAME"
_NO_RUN: Final = "no run on record, and not in the queue"
_TROUBLES: Final = 2
"""In the summary."""
_MAX_TROUBLES: Final = 20
_ORDINALS: Final = {1: "st", 2: "nd", 3: "rd"}


def with_summary(entry: View, snapshot: View, *, is_mapped: bool = False) -> View:
    """Add a summary to the state of one request.

    Args:
        entry: a request of a controller.
        snapshot: the explained object as the snapshot has it.
        is_mapped: the object triggers this request through a `map` or as an owned object; the
            request then names another object, so the version of this one says nothing about it.
    """
    summary = _describe(entry, snapshot, is_mapped=is_mapped)
    return {**entry, "mapped": is_mapped, "summary": summary}


def summarize(view: View) -> str:
    """Return the state of the object in one sentence: whatever most likely causes a delay."""
    snapshot, changes = view["snapshot"], view["changes"]
    if not snapshot["complete"]:
        return f"the snapshot may be stale: {snapshot['reason']}"
    last = changes[-1]["resourceVersion"] if changes else ""
    if _is_newer(last, snapshot["resourceVersion"]):
        return "the last change is on the bus but not in the snapshot yet: is a reconciler running?"
    if is_unknown(view):
        return _NO_OBJECT
    troubles = [describe_trouble(trouble) for trouble in view["troubles"]]
    open_ones = [entry for entry in view["controllers"] if not _is_done(entry)]
    if troubles or open_ones:
        waits = [f"{_name_of(entry)}: {entry['summary']}" for entry in open_ones]
        return "; ".join(_shorten(troubles) or waits)
    if view["controllers"]:
        return "nothing to do"
    return "no controller watches this resource"


def _shorten(troubles: list[str]) -> list[str]:
    more = len(troubles) - _TROUBLES
    return [*troubles[:_TROUBLES], f"and {more} more"] if more > 0 else troubles


def is_unknown(view: View) -> bool:
    """Whether nothing suggests that the object ever existed."""
    is_traced = any(not is_unconcerned(entry) for entry in view["controllers"])
    return view["snapshot"]["state"] == "absent" and not view["changes"] and not is_traced


def _is_done(entry: Mapping[str, Any]) -> bool:
    last = entry["lastRun"]
    is_waiting = entry["summary"] == _not_running(entry)
    has_given_up = last is not None and last["outcome"] == Outcome.GAVE_UP
    return entry["state"] == "idle" and not is_waiting and not has_given_up


def _name_of(entry: View) -> str:
    """Return the controller, and the request if it names another object."""
    if not entry["mapped"]:
        return str(entry["controller"])
    request = entry["request"]
    place = "/".join(segment for segment in (request["namespace"], request["name"]) if segment)
    return f"{entry['controller']} for {place} in {request['cluster']}"


def _describe(entry: View, snapshot: View, *, is_mapped: bool) -> str:
    state = entry["state"]
    if state == "processing":
        return _describe_processing(entry)
    if state == "quarantined":
        return (
            f"in quarantine for the {_ordinal(entry['quarantines'])} time because its workers died;"
            f" next try in {_duration(max(0.0, entry['quarantineSeconds']))}"
        )
    if state == "blocked":
        try_in = entry["breakerSeconds"]
        probe = "a probe is running" if try_in > _NEVER else f"next try in {_duration(try_in)}"
        return f"the cluster does not answer: {probe}"
    if state == "ready":
        return _describe_ready(entry)
    if state == "delayed":
        return _describe_delayed(entry)
    return _describe_idle(entry, snapshot, is_mapped=is_mapped)


def _describe_processing(entry: View) -> str:
    worker = entry["worker"] or "(unknown)"
    if entry["leaseSeconds"] < 0:
        return f"its worker {worker} is gone; another one takes over soon"
    again = "" if entry["waitingSeconds"] is None else ", then runs once more"
    return (
        f"running on {worker}, due {_duration(entry['runningSeconds'])} ago, lease for another"
        f" {_duration(entry['leaseSeconds'])}{again}"
    )


def _describe_ready(entry: View) -> str:
    waited = entry["waitingSeconds"]
    hint = ": is a worker running?" if waited > _LONG_WAIT else ""
    return f"queued for {_duration(waited)} ({entry['priority']}){hint}"


def _describe_delayed(entry: View) -> str:
    due = entry["dueInSeconds"]
    if due < 0 and _is_stalled(entry):
        again = (
            "its next run" if not entry["failures"] else f"{_ordinal(entry['failures'])} failure"
        )
        return f"overdue by {_duration(-due)}: is a worker running? ({again}{_because(entry)})"
    soon = _duration(max(0.0, due))
    if not entry["failures"]:
        return f"runs again in {soon}, as its function asked"
    failure = f"{_ordinal(entry['failures'])} failure"
    return f"backing off after the {failure}, next try in {soon}{_because(entry)}"


def _is_stalled(entry: View) -> bool:
    """Whether nothing has run for longer than a worker takes to notice a due item."""
    last = entry["lastRun"]
    ended = parse_time(last["endedAt"]) if last is not None else None
    return ended is None or (datetime.now(UTC) - ended).total_seconds() > _LONG_WAIT


def _describe_idle(entry: View, snapshot: View, *, is_mapped: bool) -> str:
    last, read = entry["lastRun"], entry["reconciled"]
    if last is not None and last["outcome"] == Outcome.GAVE_UP:
        return f"gave up {_ago(last)}{_because(entry)}; the next change starts it again"
    if last is not None and last["outcome"] == Outcome.CLUSTER_LEFT:
        return f"dropped {_ago(last)}: the cluster had left the fleet"
    if read is not None and not _is_behind(read, snapshot):
        return "reconciled the newest version"
    if entry["running"] is False and not is_mapped and _is_unseen(entry["seen"], snapshot):
        return _not_running(entry)
    if last is not None and Outcome(last["outcome"]).is_success:
        return f"succeeded {_ago(last)}"
    return _NO_RUN if is_mapped else _UNCONCERNED


def _not_running(entry: Mapping[str, Any]) -> str:
    return f"no process of {entry['controller']} runs; it sees this change when one starts"


def _because(entry: View) -> str:
    last = entry["lastRun"]
    return f": {last['error']}" if last is not None and last["error"] else ""


def _is_unseen(version: Mapping[str, Any] | None, snapshot: View) -> bool:
    if version is None:
        return bool(snapshot["state"] == "live")
    return _is_behind(version, snapshot)


def _is_behind(read: Mapping[str, Any], snapshot: Mapping[str, Any]) -> bool:
    if snapshot["incarnation"] is None or snapshot["incarnation"] < read["incarnation"]:
        return False
    if snapshot["incarnation"] > read["incarnation"]:
        return True
    return _is_newer(snapshot["resourceVersion"], read["resourceVersion"])


def _is_newer(version: str, other: str) -> bool:
    if not (is_comparable(version) and is_comparable(other)):
        return False  # an aggregated API may use any string as its version
    return version_key(version) > version_key(other)


# --- the page -------------------------------------------------------------------------------------


def render(view: View) -> str:
    """Render the page; the summary of the whole comes last."""
    place = "/".join(segment for segment in (view["namespace"], view["name"]) if segment)
    blocks = [f"{view['resource']} {place} in {view['cluster']}", _changes(view), _snapshot(view)]
    if view["owner"]:
        blocks.append(_owner(view["owner"]))
    if view["troubles"]:
        lines = map(describe_trouble, view["troubles"][:_MAX_TROUBLES])
        blocks.append("\n".join(map(printable, lines)))
    if others := [entry["controller"] for entry in view["controllers"] if is_unconcerned(entry)]:
        blocks.append(f"controller {', '.join(others)}: {_UNCONCERNED}")
    blocks += [_controller(entry) for entry in view["controllers"] if not is_unconcerned(entry)]
    return "\n\n".join([*blocks, f"summary: {printable(view['summary'])}"])


def describe_trouble(trouble: View) -> str:
    """Return where a MultiClusterResource is not well, and why."""
    reason = trouble["reason"] if trouble["reason"] not in trouble["message"] else ""
    parts = (trouble["state"], trouble["object"], reason, trouble["message"])
    where = f"in {trouble['cluster']}: " if trouble["cluster"] else ""
    return f"{where}{': '.join(text for text in parts if text)}"


def is_unconcerned(entry: View) -> bool:
    """Whether a controller has nothing to do with the object's own request."""
    return entry["summary"] == _UNCONCERNED and entry["lastRun"] is None


def _changes(view: View) -> str:
    if view["bus"]:
        return f"bus: {view['bus']}"
    if not view["changes"]:
        return f"bus: no change in the last {render_duration(view['since'])}"
    rows = [
        (
            str(change["sequence"]),
            change["verb"],
            change["resourceVersion"],
            change["observedAt"],
            _duration(change["storedAfterSeconds"]),
        )
        for change in view["changes"]
    ]
    return render_table(_HEAD, rows)


def _snapshot(view: View) -> str:
    snapshot = view["snapshot"]
    version = f" {snapshot['resourceVersion']}" if snapshot["resourceVersion"] else ""
    degraded = f" ({snapshot['degraded']})" if snapshot["degraded"] else ""
    answered = (
        "its API server has not answered yet"
        if snapshot["ageSeconds"] is None
        else f"its API server answered {_duration(snapshot['ageSeconds'])} ago"
    )
    state = f"{snapshot['state']}{version}{degraded}"
    return f"snapshot: {state}; the resource is {snapshot['freshness']}, {answered}"


def _owner(owner: View) -> str:
    place = "/".join(segment for segment in (owner["namespace"], owner["name"]) if segment)
    name = f"{owner['kind']} {place} in {owner['cluster']}"
    return printable(f"owner: {name}; controllers of this object run for its owner")


def _controller(entry: View) -> str:
    lines = [printable(f"controller {_name_of(entry)}: {entry['summary']}")]
    if entry.get("moreRequests"):
        lines.append("  the object triggers more requests than are recorded; see `fleetbus queue`")
    if entry["reconciled"]:
        version = entry["reconciled"]["resourceVersion"]
        lines.append(f"  last version that a successful run has read: {version}")
    last = entry["lastRun"]
    if last is not None:
        by = f" by {last['worker']}" if last["worker"] else ""
        lines.append(
            f"  last run: {last['outcome']} {_ago(last)}{by}, attempt {last['attempt']}:"
            f" queued {last['queuedAt']}, waited {_duration(last['waitedSeconds'])},"
            f" ran {_duration(last['ranSeconds'])}"
        )
        if last["error"]:
            lines.append(f"  error: {printable(last['error'])}")
    return "\n".join(lines)


def _ago(last: Mapping[str, Any]) -> str:
    ended = parse_time(last["endedAt"])
    if ended is None:
        return "some time ago"
    return f"{render_duration((datetime.now(UTC) - ended).total_seconds())} ago"


def _duration(seconds: float) -> str:
    if 0 <= seconds < _MILLISECOND:
        return "<1 ms"
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < _MINUTE else render_duration(seconds)


def _ordinal(number: int) -> str:
    teen = 10 < number % 100 < 20  # noqa: PLR2004 -- 11th, 12th, 13th
    return f"{number}{'th' if teen else _ORDINALS.get(number % 10, 'th')}"
