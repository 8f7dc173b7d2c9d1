"""One object to apply to one cluster, and its outcomes: what was read of it, or why it was not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleetbus.kube.applied import is_applied
from fleetbus.owned_objects.executor import OwnedObject
from fleetbus.owned_objects.refusal import Refusal
from fleetbus_distributor.health.result import Health, HealthState
from fleetbus_distributor.plan.intent import Owned
from fleetbus_distributor.render.spec import DriftPolicy
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.drift_report import Drift, describe_drift
from fleetbus_distributor.targets.outcome import Change, ObjectOutcome, State
from fleetbus_distributor.targets.target import RARELY, Finding, Target, redact_secrets
from fleetbus_distributor.targets.wrapped_numbers import wrapped_number


@dataclass(frozen=True, slots=True)
class PlacedObject:
    """An object with its place.

    Attributes:
        target: the cluster.
        place: where it is there.
        ref: its name.
        configuration: as it is applied, with our mark.
    """

    target: Target
    place: OwnedObject
    ref: ObjectRef
    configuration: Object

    @property
    def recorded(self) -> Owned | None:
        """The object on record."""
        return self.target.known.get(self.ref.key)

    @property
    def order(self) -> Object:
        """The configuration with the policies that decide how it is written: another may work."""
        policy = [self.target.policy.conflict.value, self.target.policy.drift.value]
        return {**self.configuration, "fleetbus.dev/policy": policy}

    def is_up_to_date(self, live: Object) -> bool:
        """Whether it is certain, without a request, that an apply would change nothing.

        That is known only where the live object shows exactly our fields and values, or the server
        has answered it before; else the server is asked, by the apply itself or by a dry run.
        """
        target = self.target
        if is_applied(self.configuration, live, target.manager):
            return True
        return target.memory.answers.covers(target.name, self.configuration, live, target.manager)

    def applied(
        self, live: Object, change: Change = Change.NONE, drift: Sequence[Drift] = ()
    ) -> ObjectOutcome:
        """The outcome of an object that is as it should be, as far as its server can hold that."""
        observed = replace(self._observed(live), change=change, drift=drift)
        wrapped = wrapped_number(self.configuration, live)
        if not wrapped:
            return observed
        message = f"{self.ref}: {wrapped}"
        return replace(
            observed, state=State.FAILED, reason=Refusal.INVALID, message=message, retry=RARELY
        )

    def drifted(self, drift: Sequence[Drift], live: Object | None) -> ObjectOutcome:
        """The outcome of one that differs and is not corrected; `live` is None if it is gone."""
        observed = self._observed(live)
        if self.target.policy.drift is DriftPolicy.IGNORE:
            return observed
        described = describe_drift(drift)
        message = f"{self.ref}: {described}" if drift else f"{self.ref} was changed on the cluster"
        if live is None:
            message = f"{self.ref} was deleted on the cluster"
        return replace(
            observed, state=State.DRIFTED, reason="Drifted", message=message, drift=drift
        )

    def unwritten(
        self, finding: Finding, live: Object | None = None, drift: Sequence[Drift] = ()
    ) -> ObjectOutcome:
        """The outcome of one that was not written, and why; of one that exists with its UID."""
        uid = self.target.uid_to_record(live, self.ref) if live else ""
        return replace(outcome_of(self.ref, finding), uid=uid, drift=drift)

    def _observed(self, live: Object | None) -> ObjectOutcome:
        """The health of an object, and the chosen fields of its status, as it was read just now."""
        if live is None:
            missing = Health(HealthState.MISSING, "Missing", "it is missing")
            return ObjectOutcome(self.ref, State.APPLIED, health=missing)
        rules = self.target.status_rules
        health = rules.health_of(live)
        if health.message:
            # Its controller may quote what it refuses (rule D14).
            health = replace(health, message=redact_secrets(health.message, live))
        uid, values = str(live["metadata"]["uid"]), rules.collect(live)
        return ObjectOutcome(self.ref, State.APPLIED, uid=uid, health=health, values=values)


def outcome_of(ref: ObjectRef, finding: Finding) -> ObjectOutcome:
    """The outcome of an object with a finding."""
    return ObjectOutcome(ref, finding.state, finding.reason, finding.message, retry=finding.retry)
