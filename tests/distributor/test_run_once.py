"""A Job or Pod that ended and was cleaned up runs once for each revision (rule D28)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from support.rigs.distributor import CONFIG_MAP, POD, Rig

JOBS, PODS = "batch/v1/jobs", "v1/pods"
ON_T1 = {"clusters": [{"name": "t1"}]}


def job(image: str = "migrate:1", **spec: Any) -> dict[str, Any]:
    container = {"name": "migrate", "image": f"registry.example.com/{image}"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "migrate", "namespace": "default"},
        "spec": {"template": {"spec": pod}, **spec},
    }


BRIEF = job(ttlSecondsAfterFinished=2)


def end(rig: Rig, kind: str = "Complete") -> None:
    status = {"conditions": [{"type": kind, "status": "True"}], "succeeded": 1}
    rig.clusters["t1"].patch(JOBS, "default", "migrate", {"status": status}, subresource="status")


def clean_up(rig: Rig) -> None:
    rig.clusters["t1"].delete(JOBS, "default", "migrate", policy="Background")


def has_job(rig: Rig) -> bool:
    return rig.has("t1", JOBS, "migrate")


async def look(rig: Rig) -> None:
    """As after a change on the cluster, after a restart, and after ten minutes."""
    await rig.repair("t1")
    await rig.reconcile()
    rig.restart()
    await rig.reconcile()


@pytest.mark.parametrize("drift", ["Correct", "Report", "Ignore"])
async def test_d28_a_job_with_a_time_to_live_runs_once_for_each_revision(rig: Rig, drift: str):
    rig.create(templates=[BRIEF, CONFIG_MAP], placement=ON_T1, policy={"drift": drift})
    await rig.reconcile()
    end(rig)
    await rig.repair("t1")
    clean_up(rig)
    before = len(rig.writes("t1"))
    await look(rig)
    assert not has_job(rig)
    assert len(rig.writes("t1")) == before
    assert rig.states() == {"t1": "Applied"}
    assert rig.condition()["status"] == "True"
    (stored,) = rig.resource()["status"]["intent"]["clusters"]
    assert [run["of"].endswith(":Complete") for run in stored["ran"]] == [True]

    other = {**CONFIG_MAP, "data": {"k": "edited"}}
    rig.edit(templates=[BRIEF, other])
    await look(rig)
    assert not has_job(rig), "its own template has not changed"

    rig.edit(templates=[job("migrate:2", ttlSecondsAfterFinished=2), other])
    await rig.reconcile()
    assert has_job(rig)
    end(rig, "Failed")
    await rig.repair("t1")
    clean_up(rig)
    await look(rig)
    assert not has_job(rig)
    assert rig.entry("t1")["health"] == "Degraded"
    assert "it failed, and was cleaned up" in rig.condition()["message"]

    rig.delete()
    await rig.until(lambda: not rig.exists())


async def test_d28_an_end_that_nobody_saw_is_no_reason_to_run_again(rig: Rig):
    rig.create(template=BRIEF, placement=ON_T1)
    await rig.reconcile()
    clean_up(rig)
    await look(rig)
    assert not has_job(rig)
    assert rig.entry("t1")["health"] == "Unknown"


async def test_d13_a_job_without_a_time_to_live_is_run_again_by_deleting_it(rig: Rig):
    rig.create(template=job(), placement=ON_T1)
    await rig.reconcile()
    end(rig)
    await rig.repair("t1")
    clean_up(rig)
    await rig.reconcile()
    assert has_job(rig)


async def test_d28_a_new_cluster_behind_the_name_has_run_nothing(rig: Rig):
    rig.create(template=BRIEF, placement=ON_T1)
    await rig.reconcile()
    end(rig)
    await rig.repair("t1")
    clean_up(rig)
    await look(rig)
    rig.clusters["t1"].swap_uid()
    rig.fleet.accepted["t1"] = rig.clusters["t1"].uid
    await rig.reconcile()
    assert has_job(rig)


@pytest.mark.parametrize(("phase", "runs"), [("Succeeded", False), ("Failed", True)])
async def test_d28_a_pod_that_has_succeeded_is_complete(rig: Rig, phase: str, runs: bool):
    template = copy.deepcopy(POD)
    template["spec"]["restartPolicy"] = "Never"
    name = template["metadata"]["name"]
    rig.create(template=template, placement=ON_T1)
    await rig.reconcile()
    status = {"status": {"phase": phase}}
    rig.clusters["t1"].patch(PODS, "default", name, status, subresource="status")
    await rig.repair("t1")
    rig.clusters["t1"].delete(PODS, "default", name, grace=0)
    await look(rig)
    assert rig.has("t1", PODS, name) is runs
