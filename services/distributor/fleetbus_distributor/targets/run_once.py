"""Tells which objects run once for each revision of their template (rule D28).

A Job with `ttlSecondsAfterFinished` is removed by its cluster when it has finished, and a Pod that
has succeeded goes with its node. Creating such an object again would run it again. So what was
started is recorded with the intent, and what is gone afterwards is complete, not missing, until its
template or the cluster behind the name is another one.
"""

from __future__ import annotations

from typing import Final

from fleetbus.kube.applied import digest
from fleetbus.kube.json_fields import first_maps, look, text
from fleetbus_distributor.health.result import Health, HealthState
from fleetbus_distributor.plan.intent import Owned
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.outcome import ObjectOutcome, State
from fleetbus_distributor.targets.target import Target

COMPLETE: Final = "Complete"
FAILED: Final = "Failed"
_TTL: Final = "ttlSecondsAfterFinished"
"""Field of Jobs, and by the same name of JobSets, RayJobs and Jobs of Volcano; the operators of
Kubeflow have it in a part of their spec."""
_TTL_PARTS: Final = (("spec",), ("spec", "runPolicy"))
_ENDS: Final = {"Complete": COMPLETE, "Completed": COMPLETE, "Succeeded": COMPLETE, FAILED: FAILED}
"""Type of a condition → the end that it means."""
_DIGEST: Final = 8


def ran_after(target: Target, obj: Object, live: Object | None, outcome: ObjectOutcome) -> str:
    """The record of an object: a digest of the template that was started, and how it ended.

    Args:
        target: the cluster.
        obj: the object of the template.
        live: the object as it is now; None if it was created just now.
        outcome: of the attempt to apply it.
    """
    recorded = target.known.get(outcome.ref.key)
    before = recorded.ran if recorded else ""
    started = _digest_of(target, obj)
    has_it = outcome.state in (State.APPLIED, State.DRIFTED) or _is_of(before, started)
    end = end_of(live) if live else ""
    if not has_it or not (_has_ttl(obj) or (obj["kind"] == "Pod" and end == COMPLETE)):
        return before
    return f"{started}:{end}" if end else started


def outcome_of_gone(target: Target, obj: Object, ref: ObjectRef) -> ObjectOutcome | None:
    """The outcome for an object that is gone because it has run; None if it has to be created."""
    recorded = target.known.get(ref.key)
    if recorded is None or not recorded.uid or not _is_of(recorded.ran, _digest_of(target, obj)):
        return None
    return ObjectOutcome(
        ref, State.APPLIED, uid=recorded.uid, health=_health_of(recorded), ran=recorded.ran
    )


def end_of(live: Object) -> str:
    """`COMPLETE`, `FAILED`, or "" for an object that has not ended."""
    if live.get("kind") == "Pod":
        return COMPLETE if text(live, "status", "phase") == "Succeeded" else ""
    conditions = first_maps(live, "status", "conditions")
    ends = [
        text(condition, "type") for condition in conditions if condition.get("status") == "True"
    ]
    return next((_ENDS[condition] for condition in ends if condition in _ENDS), "")


def _has_ttl(obj: Object) -> bool:
    return any(look(obj, *path, _TTL) is not None for path in _TTL_PARTS)


def _digest_of(target: Target, obj: Object) -> str:
    """Digest of the template and of the cluster: a new one behind the name has run nothing yet."""
    content = {key: value for key, value in obj.items() if key != "apiVersion"}
    return digest({"cluster": target.owner.target_uid, "object": content}).hex()[:_DIGEST]


def _is_of(ran: str, started: str) -> bool:
    return ran.partition(":")[0] == started


def _health_of(recorded: Owned) -> Health:
    end = recorded.ran.partition(":")[2]
    if end == COMPLETE:
        return Health(HealthState.HEALTHY, COMPLETE, "it completed, and was cleaned up")
    if end == FAILED:
        return Health(HealthState.DEGRADED, FAILED, "it failed, and was cleaned up")
    return Health(HealthState.UNKNOWN, "Gone", "it was cleaned up before its result was seen")
