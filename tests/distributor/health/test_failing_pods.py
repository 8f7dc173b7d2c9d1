"""Which pod of a workload fails, and why: in the health of its cluster (rule D21)."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from distributor.health.test_hostile_objects import OBJECTS
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_distributor.health.pod_failures import creation_failure, pod_failure, refused_creation
from fleetbus_distributor.rounds.failing_pods import LOOK_AGAIN, FailingPods
from fleetbus_proto.keys import SnapshotKeys
from support.full import examples
from support.objects import deployment
from support.rigs.distributor import Object, Rig
from support.rigs.rollout import CANARY, DEPLOYMENTS, rollout
from support.rows import each_row
from support.stores.snapshot import Snapshot, Source

T1 = {"clusters": [{"name": "t1"}]}
BACK_OFF = 'Back-off pulling image "nginx:nope"'
FULL = 'pods "web-7d9-" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2'


def pod(status: Any, name: str = "web-7d9-x", created: str = "2026-01-01T00:00:00Z") -> Object:
    return {"metadata": {"name": name, "creationTimestamp": created}, "status": status}


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "c", "ready": False, "state": state, **more}]}


def ended(reason: str, code: int) -> Object:
    return {"terminated": {"reason": reason, "exitCode": code, "message": "hunter2-canary"}}


def unscheduled(message: str) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"phase": "Pending", "conditions": [{**condition, "message": message}]}


CASES: dict[str, tuple[Object, str]] = {
    "an image that is not there": (
        waiting("ImagePullBackOff", BACK_OFF),
        f"pod web-7d9-x: ImagePullBackOff: {BACK_OFF}",
    ),
    "an image that cannot be pulled": (
        waiting("ErrImagePull", "not found"),
        "pod web-7d9-x: ErrImagePull: not found",
    ),
    "a ConfigMap that is missing": (
        waiting("CreateContainerConfigError", 'configmap "web" not found'),
        'pod web-7d9-x: CreateContainerConfigError: configmap "web" not found',
    ),
    "a crash": (
        waiting("CrashLoopBackOff", "back-off 10s", lastState=ended("Error", 1)),
        "pod web-7d9-x: CrashLoopBackOff: Error, exit code 1",
    ),
    "too little memory": (
        waiting("CrashLoopBackOff", "back-off 10s", lastState=ended("OOMKilled", 137)),
        "pod web-7d9-x: CrashLoopBackOff: OOMKilled, exit code 137",
    ),
    "too little memory just now": (
        {"containerStatuses": [{"state": ended("OOMKilled", 137)}]},
        "pod web-7d9-x: OOMKilled: exit code 137",
    ),
    "an init container": (
        {"initContainerStatuses": waiting("ErrImageNeverPull", "x")["containerStatuses"]},
        "pod web-7d9-x: ErrImageNeverPull: x",
    ),
    "no node": (
        unscheduled("0/3 nodes are available: 3 Insufficient cpu."),
        "pod web-7d9-x: Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.",
    ),
    "evicted": (
        {"phase": "Failed", "reason": "Evicted", "message": "low on disk"},
        "pod web-7d9-x: Evicted: low on disk",
    ),
    "an eviction that ended containers": (
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "low on disk",
            "containerStatuses": [{"name": "c", "ready": False, "state": ended("Error", 137)}],
        },
        "pod web-7d9-x: Evicted: low on disk",
    ),
    "a node that is lost": (
        {"phase": "Running", "reason": "NodeLost", "message": "Node n1 is unresponsive"},
        "pod web-7d9-x: NodeLost: Node n1 is unresponsive",
    ),
    "a signature that is none": (
        waiting("SignatureValidationFailed", "no policy"),
        "pod web-7d9-x: SignatureValidationFailed: no policy",
    ),
    "a registry that is down": (
        waiting("RegistryUnavailable", "pull QPS exceeded"),
        "pod web-7d9-x: RegistryUnavailable: pull QPS exceeded",
    ),
    "a readiness gate": (
        {
            "phase": "Running",
            "conditions": [
                {
                    "type": "Ready",
                    "status": "False",
                    "reason": "ReadinessGatesNotReady",
                    "message": 'the gate "lb" is not "True"',
                }
            ],
        },
        'pod web-7d9-x: ReadinessGatesNotReady: the gate "lb" is not "True"',
    ),
    "being created": (waiting("ContainerCreating"), ""),
    "completed": ({"phase": "Succeeded", "containerStatuses": [{"state": ended("Error", 0)}]}, ""),
    "restarted and ready": (
        {"containerStatuses": [{"ready": True, "lastState": ended("Error", 1)}]},
        "",
    ),
}


@each_row(("status", "message"), CASES.values())
def test_the_reason_of_a_pod_is_said_as_kubectl_says_it(status: Object, message: str):
    failure = pod_failure([pod(status)])
    assert (failure.message if failure else "") == message
    assert "hunter2" not in message


def test_the_newest_pod_that_fails_is_named():
    old = pod(waiting("ErrImagePull"), "web-old", "2026-01-01T00:00:00Z")
    new = pod(waiting("CrashLoopBackOff"), "web-new", "2026-02-01T00:00:00Z")
    fine = pod({"phase": "Running"}, "web-fine", "2026-03-01T00:00:00Z")
    failure = pod_failure([old, new, fine])
    assert failure is not None
    assert failure.message == "pod web-new: CrashLoopBackOff"


def test_a_megabyte_in_a_reason_or_message_is_cut():
    failure = pod_failure([pod(waiting("Err" * 300_000, "x\n" * 500_000))])
    assert failure is not None
    assert len(failure.reason) <= 60
    assert len(failure.message) < 400
    assert "\n" not in failure.message


@given(obj=OBJECTS)
@settings(max_examples=examples(200))
def test_any_pod_and_any_replica_set_are_read(obj: dict[str, Any]):
    event: Any = {**obj, "involvedObject": {"uid": "u"}, "reason": "FailedCreate"}
    refused = refused_creation([obj, event], "u")
    for failure in (pod_failure([obj, {}]), creation_failure(obj), refused):
        if failure is not None:
            assert len(orjson.dumps([failure.reason, failure.message])) < 20_000


async def show(rig: Rig, cluster: str, group: str, resource: str, *objects: Object) -> None:
    """Bring objects into the snapshot, as a watcher would."""
    snapshot = Snapshot(rig.redis)
    await snapshot.set_up(cluster)
    source = Source(cluster=cluster, group=group, resource=resource)
    for number, obj in enumerate(objects, 1):
        metadata = obj["metadata"]
        event = source.event(
            *("added", metadata["name"], str(number)),
            uid=metadata["uid"],
            namespace="default",
            body=orjson.dumps(obj),
        )
        await snapshot.apply(event)


def owned(name: str, owner: str, kind: str, **parts: Any) -> Object:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": owner}
    annotations = {"deployment.kubernetes.io/revision": parts.pop("revision", "1")}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    metadata |= {"ownerReferences": [reference], "annotations": annotations}
    return {"metadata": metadata, **parts}


def watch_pods(rig: Rig) -> None:
    rig.explain = FailingPods(SnapshotReader(rig.redis, SnapshotKeys()))
    rig.restart()


def update(rig: Rig, **status: Any) -> str:
    """Set the status of the Deployment in t1, and return its UID."""
    live = rig.get("t1", DEPLOYMENTS, "web")
    observed = {"observedGeneration": live["metadata"]["generation"], **status}
    rig.clusters["t1"].update_status(DEPLOYMENTS, {**live, "status": observed})
    return str(live["metadata"]["uid"])


async def test_a_failing_image_is_named_in_the_status_and_in_the_rollout(rig: Rig):
    watch_pods(rig)
    rig.create(template=deployment(image="nginx:nope"), placement=T1, rollout={"waves": [CANARY]})
    await rig.reconcile()
    uid = update(rig, replicas=1)
    before = await rig.repair("t1")
    assert rig.entry("t1")["unhealthy"]["message"] == "0 of 1 replicas are updated"
    assert before is not None
    assert before.requeue_after == LOOK_AGAIN
    old = owned("web-old", uid, "Deployment", revision="9")
    new = owned("web-7d9", uid, "Deployment", revision="10")
    await show(rig, "t1", "apps", "replicasets", old, new)
    wrong = owned("web-old-x", "uid-web-old", "ReplicaSet", status=waiting("CrashLoopBackOff"))
    failing = owned(
        "web-7d9-x", "uid-web-7d9", "ReplicaSet", status=waiting("ImagePullBackOff", BACK_OFF)
    )
    await show(rig, "t1", "core", "pods", wrong, failing)
    await rig.repair("t1")
    expected = f"0 of 1 replicas are updated: pod web-7d9-x: ImagePullBackOff: {BACK_OFF}"
    unhealthy = rig.entry("t1")["unhealthy"]
    assert (unhealthy["reason"], unhealthy["message"]) == ("ImagePullBackOff", expected)
    assert "ImagePullBackOff" in rollout(rig)["message"]
    summary = rig.resource()["status"]["summary"]
    assert summary["reason"] in ("ImagePullBackOff", "RolloutInProgress", "Replicas")
    ready = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}
    update(rig, **ready)
    await rig.repair("t1")
    assert "unhealthy" not in rig.entry("t1")


async def test_a_quota_is_named_by_the_replica_set(rig: Rig):
    watch_pods(rig)
    rig.create(template=deployment(image="nginx:1"), placement=T1)
    await rig.reconcile()
    uid = update(rig, replicas=0)
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": FULL}
    replica_set = owned("web-7d9", uid, "Deployment", status={"conditions": [failed]})
    await show(rig, "t1", "apps", "replicasets", replica_set)
    await rig.repair("t1")
    message = rig.entry("t1")["unhealthy"]["message"]
    assert message.startswith("0 of 1 replicas are updated: ReplicaSet web-7d9: FailedCreate: pods")


OTHERS = pytest.mark.parametrize(
    ("kind", "version", "status"),
    [
        ("StatefulSet", "apps/v1", {}),
        ("DaemonSet", "apps/v1", {"desiredNumberScheduled": 1}),
        ("Job", "batch/v1", {}),
    ],
)


async def start(rig: Rig, kind: str, version: str, status: dict[str, Any]) -> Object:
    """Distribute a workload whose pods do not come, and return it."""
    watch_pods(rig)
    workload: Object = {**deployment(image="nginx:nope"), "kind": kind, "apiVersion": version}
    if kind != "StatefulSet":
        del workload["spec"]["replicas"]
    if kind == "Job":
        del workload["spec"]["selector"]
        workload["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    if kind == "StatefulSet":
        workload["spec"]["serviceName"] = "web"
    rig.create(template=workload, placement=T1)
    await rig.reconcile()
    resource = f"{version}/{kind.lower()}s"
    live = rig.get("t1", resource, "web")
    observed = {"observedGeneration": live["metadata"]["generation"]} if kind != "Job" else {}
    rig.clusters["t1"].update_status(resource, {**live, "status": {**status, **observed}})
    return live


@OTHERS
async def test_other_workloads_own_their_pods(
    rig: Rig, kind: str, version: str, status: dict[str, Any]
):
    live = await start(rig, kind, version, status)
    failing = owned("web-0", live["metadata"]["uid"], kind, status=waiting("ErrImagePull", "no"))
    await show(rig, "t1", "core", "pods", failing)
    await rig.repair("t1")
    assert "pod web-0: ErrImagePull: no" in rig.entry("t1")["unhealthy"]["message"]


def about(live: Object, number: int, reason: str, message: str, minute: int) -> Object:
    metadata = {"name": f"web.{number}", "namespace": "default", "uid": f"uid-event-{number}"}
    involved = {"kind": live["kind"], "name": "web", "uid": live["metadata"]["uid"]}
    time = f"2026-01-01T00:{minute:02}:00Z"
    event = {"reason": reason, "message": message, "lastTimestamp": time}
    return {"metadata": metadata, "involvedObject": involved, **event}


@OTHERS
async def test_refused_pods_of_other_workloads_are_named_by_events(
    rig: Rig, kind: str, version: str, status: dict[str, Any]
):
    live = await start(rig, kind, version, status)
    created = about(live, 1, "SuccessfulCreate", "created pod web-1", 1)
    refused = about(live, 2, "FailedCreate", f"Error creating: {FULL}", 2)
    other = about({**live, "metadata": {"uid": "other"}}, 3, "Odd", "of another", 3)
    odd: Object = {"metadata": {"name": "odd", "uid": "odd"}, "involvedObject": [], "series": 1}
    await show(rig, "t1", "core", "events", created, refused, other, odd)
    await rig.repair("t1")
    unhealthy = rig.entry("t1")["unhealthy"]
    assert unhealthy["reason"] == "FailedCreate"
    assert f": {kind} web: FailedCreate: Error creating: pods " in unhealthy["message"]
    over = about(live, 4, "SuccessfulCreate", "created pod web-2", 4)
    await show(rig, "t1", "core", "events", created, refused, over)
    await rig.repair("t1")
    assert "FailedCreate" not in rig.entry("t1")["unhealthy"]["message"]


async def test_a_store_that_is_away_and_odd_pods_change_nothing(rig: Rig):
    watch_pods(rig)
    rig.create(template=deployment(image="nginx:nope"), placement=T1)
    await rig.reconcile()
    uid = update(rig, replicas=1)
    new = owned("web-7d9", uid, "Deployment")
    await show(rig, "t1", "apps", "replicasets", new)
    odd = owned("web-7d9-x", "uid-web-7d9", "ReplicaSet", status={"containerStatuses": "x"})
    await show(rig, "t1", "core", "pods", odd, owned("p", "uid-web-7d9", "ReplicaSet", status=[]))
    await rig.repair("t1")
    assert rig.entry("t1")["unhealthy"]["message"] == "0 of 1 replicas are updated"
    await rig.redis.flushall()
    await rig.repair("t1")
    assert rig.states() == {"t1": "Applied"}
    assert "updated" in json.dumps(rig.entry("t1"))
