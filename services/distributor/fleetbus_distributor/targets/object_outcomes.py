"""Outcomes of one object, from what was read of it or from why it was not written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleetbus_distributor.health.health import Health, HealthState
from fleetbus_distributor.render.spec import DriftPolicy
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.drift_report import Drift, describe_drift
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
from fleetbus_distributor.targets.target import Finding, Target, redact_secrets


def applied(
    target: Target,
    ref: ObjectRef,
    live: Object,
    change: Change = Change.NONE,
    drift: Sequence[Drift] = (),
) -> ObjectOutcome:
    """The outcome of an object that is as it should be."""
    return replace(_observed(target, ref, live), change=change, drift=drift)


def drifted(
    target: Target, ref: ObjectRef, drift: Sequence[Drift], live: Object | None
) -> ObjectOutcome:
    """The outcome of an object that differs and is not corrected; `live` is None if it is gone."""
    observed = _observed(target, ref, live)
    if target.policy.drift is DriftPolicy.IGNORE:
        return observed
    described = describe_drift(drift)
    message = f"{ref}: {described}" if described else f"{ref} was changed on the cluster"
    if live is None:
        message = f"{ref} was deleted on the cluster"
    return replace(observed, state=State.DRIFTED, reason="Drifted", message=message, drift=drift)


def _observed(target: Target, ref: ObjectRef, live: Object | None) -> ObjectOutcome:
    """The health of an object, and the chosen fields of its status, as it was read just now."""
    if live is None:
        missing = Health(HealthState.MISSING, "Missing", "it is missing")
        return ObjectOutcome(ref, State.APPLIED, health=missing)
    health = target.status_rules.health_of(live)
    if health.message:
        # Its controller may quote what it refuses (rule D14).
        health = replace(health, message=redact_secrets(health.message, live))
    uid, values = str(live["metadata"]["uid"]), target.status_rules.collect(live)
    return ObjectOutcome(ref, State.APPLIED, uid=uid, health=health, values=values)


def outcome_of(ref: ObjectRef, finding: Finding, uid: str = "") -> ObjectOutcome:
    """The outcome of an object with a finding."""
    return ObjectOutcome(ref, finding.state, finding.reason, finding.message, uid, finding.retry)
