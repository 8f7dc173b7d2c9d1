"""The health of one object, from its status."""

from __future__ import annotations

from typing import Any

import pytest

from fleetbus_distributor.health.health import HealthState, health_of

H, P, D = HealthState.HEALTHY, HealthState.PROGRESSING, HealthState.DEGRADED


def made(kind: str, status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    group = {"Job": "batch/v1", "Pod": "v1", "ConfigMap": "v1"}.get(kind, "apps/v1")
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": "x", "generation": 2},
        "spec": spec,
        "status": status,
    }


DONE = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
ROLLED = {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2}
READY = [{"type": "Ready", "status": "True"}]
STUCK = [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]
CASES: list[tuple[dict[str, Any], HealthState]] = [
    (made("ConfigMap", {}), H),
    (made("Deployment", DONE), H),
    (made("Deployment", DONE, replicas=0), H),
    (made("Deployment", {}), P),
    (made("Deployment", DONE | {"observedGeneration": 1}), P),
    (made("Deployment", DONE | {"availableReplicas": 0}), P),
    (made("Deployment", DONE | {"replicas": 2}), P),
    (made("Deployment", DONE, replicas=3), P),
    (
        made(
            "Deployment",
            DONE | {"conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]},
        ),
        D,
    ),
    (made("StatefulSet", {"observedGeneration": 2, "readyReplicas": 1}), H),
    (made("StatefulSet", {"observedGeneration": 2, "readyReplicas": 0}), P),
    (
        made(
            "StatefulSet",
            {
                "observedGeneration": 2,
                "readyReplicas": 1,
                "currentRevision": "a",
                "updateRevision": "b",
            },
        ),
        P,
    ),
    (made("DaemonSet", ROLLED | {"numberAvailable": 2}), H),
    (made("DaemonSet", ROLLED | {"numberAvailable": 1}), P),
    (made("DaemonSet", ROLLED | {"updatedNumberScheduled": 1, "numberAvailable": 2}), P),
    (made("Job", {"conditions": [{"type": "Complete", "status": "True"}]}), H),
    (made("Job", {"conditions": [{"type": "Failed", "status": "True"}]}), D),
    (made("Job", {}), P),
    (made("Pod", {"phase": "Running", "conditions": READY}), H),
    (made("Pod", {"phase": "Running"}), P),
    (made("Pod", {"phase": "Succeeded"}), H),
    (made("Pod", {"phase": "Failed"}), D),
    (made("Pod", {"phase": "Pending", "containerStatuses": STUCK}), D),
]


@pytest.mark.parametrize(("obj", "state"), CASES)
def test_the_health_of_workloads_is_that_of_their_controllers(
    obj: dict[str, Any], state: HealthState
):
    found = health_of(obj)
    assert found.state is state
    assert bool(found.message) == (state is not H)
