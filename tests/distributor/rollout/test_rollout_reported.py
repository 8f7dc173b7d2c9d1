"""The condition Ready, and Kubernetes Events, during a rollout: for people and `kubectl wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver import Fail
from support.objects import config_map
from support.rigs.rollout import CANARY, on_v1, rollout, rounds, vote

if TYPE_CHECKING:
    from support.rigs.distributor import Rig

GATED = {"waves": [CANARY | {"gates": [{"name": "tests"}]}]}
_OF_ROLLOUTS = ("Wave", "Rollout", "Paused", "Resumed", "Undone")


def ready(rig: Rig) -> tuple[str, str]:
    """Status and reason of Ready; it is of this generation, and `kubectl get` says the same."""
    resource, condition = rig.resource(), rig.condition()
    assert condition["observedGeneration"] == resource["metadata"]["generation"]
    assert resource["status"]["observedGeneration"] == condition["observedGeneration"]
    reason = resource["status"]["summary"]["reason"]
    assert reason == (condition["reason"] if condition["status"] == "False" else "Ready")
    return condition["status"], condition["reason"]


def events(rig: Rig) -> list[str]:
    emitted = rig.hub.list("v1/events", "default")
    emitted.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
    reasons = [str(event["reason"]) for event in emitted if event["involvedObject"]["name"] == "x"]
    return [reason for reason in reasons if reason.startswith(_OF_ROLLOUTS)]


async def test_d17_a_resource_is_not_ready_before_its_rollout_is_complete(rig: Rig):
    await on_v1(rig)
    assert ready(rig) == ("True", "Applied")
    rig.edit(template=config_map(k="v2"), rollout=GATED)
    await rounds(rig)
    # All clusters have what they are to have at the moment.
    assert set(rig.states().values()) == {"Applied"}
    assert ready(rig) == ("False", "RolloutInProgress")
    assert "gate tests: no vote yet" in rig.condition()["message"]
    rig.edit(rollout=GATED | {"paused": True})
    await rounds(rig)
    assert ready(rig) == ("False", "RolloutPaused")
    rig.edit(rollout=GATED)
    vote(rig, "canary", "tests", vote="fail", reason="slow")
    await rounds(rig)
    assert ready(rig) == ("False", "RolloutFailed")
    assert "slow" in rig.condition()["message"]
    vote(rig, "canary", "tests", vote="pass")
    rig.edit(template=config_map(k="v3"))
    await rounds(rig)
    vote(rig, "canary", "tests", vote="pass")
    await rounds(rig)
    assert ready(rig) == ("True", "Applied")


async def test_d17_a_cluster_that_fails_is_the_reason_also_during_a_rollout(rig: Rig):
    await on_v1(rig)
    rig.clusters["t1"].faults.add(Fail(500), verb="patch", resource="configmaps")
    rig.edit(template=config_map(k="v2"))
    await rounds(rig)
    assert rollout(rig)["phase"] == "Progressing"
    condition: dict[str, Any] = rig.condition()
    assert (condition["status"], condition["reason"]) == ("False", "Failed")
    assert "wave canary" in condition["message"]


async def test_d17_each_change_of_a_rollout_is_one_event(rig: Rig):
    await on_v1(rig)
    waves = ["WaveOpened", "WavePassed", "WaveOpened", "WavePassed"]
    assert events(rig) == [*waves, "RolloutComplete"]
    count = len(events(rig))
    rig.edit(template=config_map(k="v2"), rollout=GATED)
    await rounds(rig)
    rig.edit(rollout=GATED | {"paused": True})
    await rounds(rig)
    rig.edit(rollout=GATED)
    await rounds(rig)
    vote(rig, "canary", "tests", vote="pass")
    await rounds(rig)
    assert events(rig)[count:] == [
        *("WaveOpened", "Paused", "Resumed", "WavePassed"),
        *("WaveOpened", "WavePassed", "RolloutComplete"),
    ]
    count = len(events(rig))
    rig.edit(template=config_map(k="v1"))
    await rounds(rig)
    vote(rig, "canary", "tests", vote="fail")
    await rounds(rig)
    assert events(rig)[count:] == ["Undone", "WaveOpened", "WaveFailed"]
    count = len(events(rig))
    await rounds(rig)
    assert events(rig)[count:] == []
