"""Tells the health of everything that is no workload, mostly from its conditions.

Custom resources are evaluated as kstatus (kubectl apply, Flux) does: by `observedGeneration` and
the conditions that controllers have in common. One without any is healthy once it is applied.
"""

from __future__ import annotations

from typing import Final

from fleetbus.kube.json_fields import condition, first_maps, mapping, number, string
from fleetbus_distributor.health.fields import Tree, is_false, is_observed, is_true
from fleetbus_distributor.health.result import (
    HEALTHY,
    NOT_OBSERVED,
    Health,
    HealthState,
    degraded,
    from_condition,
    progressing,
)

_READY: Final = ("Ready", "Available")
"""The first one that exists decides."""


def by_conditions(obj: Tree, status: Tree) -> Health:
    """Evaluate any kind by the usual conditions."""
    generation = number(obj, "metadata", "generation")
    observed = status.get("observedGeneration")
    if isinstance(observed, int) and observed < generation:
        return NOT_OBSERVED
    if is_true(status, "Stalled"):
        stalled = condition(status, "Stalled")
        return from_condition(HealthState.DEGRADED, stalled, "Stalled", "it makes no progress")
    if is_true(status, "Reconciling"):
        state = HealthState.PROGRESSING
        return from_condition(
            state, condition(status, "Reconciling"), "Reconciling", "it is being reconciled"
        )
    for kind in _READY:
        if ready := condition(status, kind):
            return _by_condition(ready, generation, kind)
    return HEALTHY


def _by_condition(ready: Tree, generation: int, kind: str) -> Health:
    observed = ready.get("observedGeneration")
    if isinstance(observed, int) and observed < generation:
        return NOT_OBSERVED
    if ready.get("status") == "True":
        return HEALTHY
    return from_condition(HealthState.PROGRESSING, ready, f"Not{kind}", f"it is not {kind.lower()}")


def custom_resource_definition(_obj: Tree, status: Tree) -> Health:
    """It is established: its instances can be created."""
    if is_false(status, "NamesAccepted"):
        refused = condition(status, "NamesAccepted")
        return from_condition(HealthState.DEGRADED, refused, "NamesNotAccepted", "names conflict")
    if is_true(status, "Terminating"):
        return progressing("Terminating", "its instances are being deleted")
    if is_true(status, "Established"):
        return HEALTHY
    return progressing("NotEstablished", "it is not established")


def persistent_volume_claim(_obj: Tree, status: Tree) -> Health:
    """It is bound."""
    phase = string(status, "phase")
    if phase == "Lost":
        return degraded("Lost", "its volume is lost")
    return HEALTHY if phase == "Bound" else progressing(phase or "Pending", "it is not bound")


def persistent_volume(_obj: Tree, status: Tree) -> Health:
    """It can be claimed, or is claimed."""
    phase = string(status, "phase")
    if phase == "Failed":
        return degraded("Failed", "it could not be reclaimed")
    return progressing("Pending", "it is not available") if phase in ("", "Pending") else HEALTHY


def service(obj: Tree, status: Tree) -> Health:
    """A load balancer has an address; every other Service is healthy at once."""
    if mapping(obj, "spec").get("type") != "LoadBalancer":
        return HEALTHY
    if first_maps(status, "loadBalancer", "ingress"):
        return HEALTHY
    return progressing("NoAddress", "its load balancer has no address")


def namespace(_obj: Tree, status: Tree) -> Health:
    """It is not being deleted."""
    if status.get("phase") == "Terminating":
        return progressing("Terminating", "it is being deleted")
    return HEALTHY


def pod_disruption_budget(obj: Tree, status: Tree) -> Health:
    """Enough pods are healthy."""
    if not is_observed(obj):
        return NOT_OBSERVED
    current, desired = number(status, "currentHealthy"), number(status, "desiredHealthy")
    if current >= desired:
        return HEALTHY
    return progressing("Pods", f"{current} of {desired} pods are healthy")
