"""Builds the events on the bus, from the difference of two statuses (rule D27).

Of each cluster there is one event for its state, and one each for the objects that were corrected,
deleted or given up. Messages are those of the status, which are redacted (rule D14), and no event
has a value of an object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from fleetbus.kube.json_fields import condition
from fleetbus.process.clock import utc_now
from fleetbus.process.redact import cut
from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.entries import entries_in
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.rollout.changes import RolloutChange
from fleetbus_distributor.targets.outcome import Change, ClusterOutcome, ObjectOutcome, State
from fleetbus_proto.distribution import AffectedObject, DistributionEvent
from fleetbus_proto.subjects import DistributionVerb

_STATES: Final = {
    State.APPLIED: DistributionVerb.APPLIED,
    State.DRIFTED: DistributionVerb.DRIFTED,
    State.HELD: DistributionVerb.HELD,
    State.WAITING: DistributionVerb.WAITING,
    State.CONFLICT: DistributionVerb.CONFLICT,
    State.FAILED: DistributionVerb.FAILED,
    State.UNREACHABLE: DistributionVerb.UNREACHABLE,
}
"""Events by state. `Deleting` has none: `deleted` names the objects."""
_REFUSALS: Final = {
    "InvalidSpec": DistributionVerb.FAILED,
    "IntentUnusable": DistributionVerb.FAILED,
    "RolloutUnusable": DistributionVerb.FAILED,
    "ServiceAccountRequired": DistributionVerb.FAILED,
    "Suspended": DistributionVerb.WAITING,
}
"""Reasons of the condition Ready where a spec is not applied at all."""
_MAX_OBJECTS: Final = 20
_MAX_FIELDS: Final = 3
"""Number of fields of one object; the message counts the others."""
_MAX_FIELD: Final = 200
_MAX_MESSAGE: Final = 1024
_Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds the events about one MultiClusterResource."""

    document: Document
    revisions: Mapping[str, int]
    """Cluster → the number of the revision that it has; "" → that of the newest."""

    def event(
        self,
        verb: DistributionVerb,
        cluster: str,
        objects: Sequence[ObjectRef | ObjectOutcome | str] = (),
        *,
        reason: str = "",
        message: str = "",
        wave: str = "",
    ) -> DistributionEvent:
        metadata = self.document.metadata
        return DistributionEvent(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=self.document.generation,
            revision=self.revisions.get(cluster, self.revisions.get("", 0)),
            cluster=cluster,
            event=verb,
            wave=wave,
            objects=[affected for each in objects[:_MAX_OBJECTS] for affected in _affected(each)],
            more=max(0, len(objects) - _MAX_OBJECTS),
            reason=reason,
            message=cut(message, _MAX_MESSAGE),
            time=utc_now(),
        )


def events_of(
    document: Document, outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]
) -> list[DistributionEvent]:
    """Build the events of a round.

    Args:
        document: the MultiClusterResource, with the status after the round.
        outcomes: of the clusters of the round.
        old: the status before it.
    """
    new = document.status
    builder = _Builder(document, _revisions(new))
    events = list(_of_objects(builder, outcomes, old, new))
    events += _of_states(builder, {outcome.name: outcome for outcome in outcomes}, old, new)
    return [*events, *_of_fleet(builder, old, new)]


def rollout_events(document: Document, changes: Iterable[RolloutChange]) -> list[DistributionEvent]:
    """Build the events of a rollout.

    Args:
        document: the MultiClusterResource, with the status after the changes.
        changes: of its rollout.
    """
    builder = _Builder(document, _revisions(document.status))
    return [
        builder.event(change.verb, "", message=change.message, wave=change.wave)
        for change in changes
    ]


def _revisions(new: Mapping[str, Any]) -> dict[str, int]:
    rollout = cast("dict[str, Any]", new.get("rollout") or {})
    behind = cast("list[dict[str, Any]]", rollout.get("behind") or [])
    has = {name: group["revision"] for group in behind for name in group["clusters"]}
    return {"": rollout.get("revision", 0), **has}


def _of_objects(
    builder: _Builder,
    outcomes: Sequence[ClusterOutcome],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
) -> Iterator[DistributionEvent]:
    """The events about objects that were corrected, deleted or given up."""
    for outcome in outcomes:
        if outcome.corrected:
            yield builder.event(
                DistributionVerb.CORRECTED,
                outcome.name,
                outcome.corrected,
                reason="Drifted",
                message=outcome.last_correction,
            )
        gone = [ref for change, ref in outcome.changes if change is Change.DELETED]
        if gone:
            yield builder.event(DistributionVerb.DELETED, outcome.name, gone)
    for (cluster, reason), names in _released(outcomes, old, new).items():
        yield builder.event(DistributionVerb.RELEASED, cluster, names, reason=reason)


def _released(
    outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[tuple[str, str], list[str]]:
    """Objects given up just now: also on clusters that have no outcome any more."""
    before = cast("list[_Entry]", old.get("leftBehind") or [])
    names = {
        (left.cluster, str(left.ref), left.reason): None
        for outcome in outcomes
        for left in outcome.left_behind
    }
    for entry in cast("list[_Entry]", new.get("leftBehind") or []):
        if entry not in before:
            names[entry["cluster"], entry["object"], entry["reason"]] = None
    groups: dict[tuple[str, str], list[str]] = {}
    for cluster, name, reason in names:
        groups.setdefault((cluster, reason), []).append(name)
    return groups


def _of_states(
    builder: _Builder,
    outcomes: Mapping[str, ClusterOutcome],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
) -> Iterator[DistributionEvent]:
    before = {entry["name"]: entry for entry in entries_in(old)}
    for entry in entries_in(new):
        name, state = str(entry["name"]), State(entry["state"])
        verb = _STATES.get(state)
        if verb is None or _is_same(before.get(name, {}), entry):
            continue
        outcome = outcomes.get(name)
        objects = _objects_of(outcome, state) if outcome else ()
        yield builder.event(
            verb, name, objects, reason=entry.get("reason", ""), message=entry.get("message", "")
        )


def _is_same(old: _Entry, new: _Entry) -> bool:
    """Whether an entry shows what it did; messages may be cut at different lengths."""
    if any(old.get(key) != new.get(key) for key in ("state", "reason")):
        return False
    if new["state"] == State.APPLIED and old.get("revision") != new.get("revision"):
        return False
    first, second = (str(entry.get("message", "")) for entry in (old, new))
    if first == second or not (first.endswith("…") or second.endswith("…")):
        return first == second
    length = min(len(first), len(second)) - 1
    return first[:length] == second[:length]


def _objects_of(outcome: ClusterOutcome, state: State) -> Sequence[ObjectRef | ObjectOutcome]:
    """The objects that a state is about: what was written, or what is not as it should be."""
    if state is not State.APPLIED:
        return [finding for finding in outcome.findings if finding.state is state]
    written = [ref for change, ref in outcome.changes if change is not Change.DELETED]
    if not outcome.corrected:
        return written
    corrected = {finding.ref for finding in outcome.corrected}
    return [ref for ref in written if ref not in corrected]


def _affected(subject: ObjectRef | ObjectOutcome | str) -> Iterator[AffectedObject]:
    """An object, or each of its fields that others have changed or hold, up to a few."""
    if not isinstance(subject, ObjectOutcome) or not subject.drift:
        ref = subject.ref if isinstance(subject, ObjectOutcome) else subject
        version = ref.api_version if isinstance(ref, ObjectRef) else ""
        yield AffectedObject(object=str(ref), api_version=version)
        return
    for field in subject.drift[:_MAX_FIELDS]:
        yield AffectedObject(
            object=str(subject.ref),
            api_version=subject.ref.api_version,
            field=cut(field.field, _MAX_FIELD),
            manager=field.manager,
            time=field.time,
        )


def _of_fleet(
    builder: _Builder, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[DistributionEvent]:
    """The events about no cluster in particular: a hold, or a spec that is not applied."""
    hold = cast("dict[str, str]", new.get("held") or {})
    before = cast("dict[str, str]", old.get("held") or {})
    if hold and hold.get("planHash") != before.get("planHash"):
        _, message = _why(new, status.HELD)
        reason = hold.get("reason", "")
        yield builder.event(DistributionVerb.HELD, "", reason=reason, message=message)
    reason, message = _why(new, status.READY)
    if reason in _REFUSALS and (reason, message) != _why(old, status.READY):
        yield builder.event(_REFUSALS[reason], "", reason=reason, message=message)


def _why(of: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """Reason and message of a condition; empty if it is absent."""
    entry = condition(of, kind)
    return str(entry.get("reason", "")), str(entry.get("message", ""))
