"""A Test in the main cluster runs as a Job in every cluster; its phase comes back.

FLEETBUS_EXAMPLE_MAIN names the main cluster; the definition of Tests, in crd.yaml, is there.
"""

import os
from collections.abc import Sequence

import fleetbus

MAIN = os.environ.get("FLEETBUS_EXAMPLE_MAIN", "cluster1")
GROUP = "examples.fleetbus.dev"

testjobs = fleetbus.Children(
    "testjobs",
    parents=f"{GROUP}/v1/tests",
    parent_clusters=[MAIN],
    children="batch/v1/jobs",
)


@testjobs.desired
async def jobs(test: fleetbus.Object, cluster: str, fleet: fleetbus.Fleet) -> list[fleetbus.Child]:
    job = job_of(test, cluster)
    # The template of a Job cannot be changed, so a Job is made once and then left alone.
    return [fleetbus.Child(info.name, job, create_only=True) for info in fleet.clusters()]


def job_of(test: fleetbus.Object, cluster: str) -> fleetbus.Object:
    namespace, name = test["metadata"]["namespace"], test["metadata"]["name"]
    owner = {"owner-namespace": namespace, "owner-name": name, "owner-cluster": cluster}
    labels = {f"{GROUP}/{key}": fleetbus.label_value(text) for key, text in owner.items()}
    # Names of Jobs end up in labels of Pods, where 63 letters are the most.
    short = name if len(name) <= 63 and "." not in name else fleetbus.child_name(test, cluster)
    container = {"name": short, "image": test["spec"]["image"]}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": short, "namespace": namespace, "labels": labels},
        "spec": {"template": {"spec": pod}},
    }


@testjobs.propagate
async def report(
    test: fleetbus.Object, jobs: Sequence[fleetbus.Child], _fleet: fleetbus.Fleet
) -> fleetbus.Object:
    states = {job.cluster: state_of(job) for job in jobs}
    image = test["spec"]["image"]
    old = sorted(job.cluster for job in jobs if not job.problem and image_of(job.object) != image)
    message = f"The Jobs in {', '.join(old)} still run another image" if old else None
    ended = [phase for phase in ("finished", "failed") if phase in states.values()]
    status: fleetbus.Object = test.get("status") or {}
    clusters: fleetbus.Object = dict.fromkeys(status.get("clusters") or {})  # of those that left
    clusters |= states
    phase = ended[0] if ended else "running"
    return {"status": {"phase": phase, "message": message, "clusters": clusters}}


def state_of(job: fleetbus.Child) -> str:
    if job.problem:
        return f"pending: {job.problem}"[:200]
    status: fleetbus.Object = job.object.get("status") or {}
    conditions: list[fleetbus.Object] = status.get("conditions") or []
    ended = {condition["type"] for condition in conditions if condition.get("status") == "True"}
    return "finished" if "Complete" in ended else "failed" if "Failed" in ended else "running"


def image_of(job: fleetbus.Object) -> str:
    return job["spec"]["template"]["spec"]["containers"][0]["image"]
