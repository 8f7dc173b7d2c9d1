"""T14: the example testjobs, from main to main and sub."""

from __future__ import annotations

import pathlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import yaml

from fleetbus.controller.load import load_controllers
from fleetbus.reconcile import Request
from fleetbus.workqueue.queue import Add
from fleetbus.workqueue.redis import RedisQueue
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually, never
from support.rigs.fleet import Rig
from support.rigs.scenario import QUIET, WITHIN

Object = dict[str, Any]
FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "testjobs"
TESTS, JOBS = "examples.fleetbus.dev/v1/tests", "batch/v1/jobs"
NAME = "test-sample"
NOW = "2026-01-01T00:00:00Z"
AFTER_RETURN = timedelta(seconds=30)


def job(rig: Rig, cluster: str, name: str = NAME) -> Object | None:
    return rig.clusters[cluster].get(JOBS, "default", name)


def status(rig: Rig, name: str = NAME) -> Object:
    found = rig.clusters["main"].get(TESTS, "default", name)
    return (found or {}).get("status") or {}


def make(rig: Rig, cluster: str = "main", name: str = NAME) -> None:
    sample = yaml.safe_load((FOLDER / "test-sample.yaml").read_text())
    sample["metadata"]["name"] = name
    rig.clusters[cluster].create(TESTS, sample)


def end(rig: Rig, cluster: str, outcome: str, name: str = NAME) -> None:
    """Write what a Job controller would write."""
    found = job(rig, cluster, name)
    assert found is not None
    early = "SuccessCriteriaMet" if outcome == "Complete" else "FailureTarget"
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": NOW} for kind in (early, outcome)
    ]
    found["status"] = {"startTime": NOW, "conditions": conditions, "active": 0}
    found["status"] |= (
        {"completionTime": NOW, "succeeded": 1} if outcome == "Complete" else {"failed": 1}
    )
    rig.clusters[cluster].update(JOBS, found, subresource="status")


async def in_phase(rig: Rig, phase: str, name: str = NAME) -> None:
    await eventually(lambda: status(rig, name).get("phase") == phase, WITHIN)


def writes(rig: Rig) -> list[str]:
    return [
        f"{name}: {one.verb} {one.path}"
        for name, cluster in rig.clusters.items()
        for one in cluster.requests
        if one.verb in ("create", "update", "patch", "delete")
        and one.user_agent.startswith("fleetbus")
    ]


@pytest.fixture
async def rig(open_rig: Callable[..., Awaitable[Rig]], monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setenv("FLEETBUS_EXAMPLE_MAIN", "main")
    rig = await open_rig("main", "sub", resources=(JOBS, TESTS))
    for cluster in rig.clusters.values():  # also in sub, where no Test may have a Job
        cluster.create(CRDS, yaml.safe_load((FOLDER / "crd.yaml").read_text()))
    return rig


def start(rig: Rig) -> None:
    (controller,) = load_controllers([str(FOLDER / "controller.py")])
    rig.start_reconciler(controller)
    for name in rig.clusters:
        rig.start_watcher(name)


@pytest.mark.full  # its example has a test that always runs
async def test_t14_a_test_runs_in_every_cluster_and_tells_what_became_of_its_jobs(
    rig: Rig,
) -> None:
    start(rig)
    await rig.synced("batch/jobs", "examples.fleetbus.dev/tests")
    long = "l" * 80
    for name in (NAME, "second", long):
        make(rig, name=name)
    make(rig, "sub", "only-in-sub")
    everywhere = {"main": "running", "sub": "running"}
    for name in (NAME, "second", long):
        await eventually(lambda name=name: status(rig, name).get("clusters") == everywhere, WITHIN)
    for cluster in ("main", "sub"):
        found = job(rig, cluster)
        assert found is not None
        pod = found["spec"]["template"]["spec"]
        assert [(one["name"], one["image"]) for one in pod["containers"]] == [(NAME, "busybox")]
        assert pod["restartPolicy"] == "Never"
        labels = found["metadata"]["labels"]
        owner = [
            labels[f"examples.fleetbus.dev/owner-{p}"] for p in ("namespace", "name", "cluster")
        ]
        assert owner == ["default", NAME, "main"]
        assert len(rig.clusters[cluster].list(JOBS, "default")) == 3
    end(rig, "sub", "Complete")
    await in_phase(rig, "finished")
    end(rig, "main", "Complete", "second")
    await in_phase(rig, "finished", "second")
    (failing,) = [
        one["metadata"]["name"]
        for one in rig.clusters["sub"].list(JOBS, "default")
        if one["metadata"]["name"].startswith("default-lll")
    ]
    end(rig, "sub", "Failed", failing)
    await in_phase(rig, "failed", long)
    await eventually(
        lambda: status(rig, long)["clusters"] == {"main": "running", "sub": "failed"}, WITHIN
    )
    main = rig.clusters["main"]
    main.patch(TESTS, "default", "second", {"spec": {"image": "alpine"}})
    await eventually(lambda: "another image" in status(rig, "second").get("message", ""), WITHIN)
    kept = job(rig, "sub", "second")
    await rig.quiet("testjobs")
    before = writes(rig)
    queue = RedisQueue(rig.redis, "testjobs")
    await queue.add([Add(Request("testjobs", "nowhere", "default", NAME))])
    await queue.add([Add(Request("testjobs", "main", "default", NAME))])
    await queue.aclose()
    await rig.quiet("testjobs")
    await never(lambda: writes(rig) != before, QUIET)
    assert job(rig, "sub", "second") == kept  # Job templates are immutable
    main.delete(TESTS, "default", "second")
    await eventually(lambda: main.get(TESTS, "default", "second") is None, WITHIN)
    assert job(rig, "main", "second") is job(rig, "sub", "second") is None


@pytest.mark.slow
async def test_t14_strangers_are_ignored_and_an_absent_cluster_gets_its_job_later(
    rig: Rig,
) -> None:
    main, sub = rig.clusters["main"], rig.clusters["sub"]
    container = {"name": "x", "image": "x"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    stranger: Object = {"metadata": {"name": "stranger"}, "spec": {"template": {"spec": pod}}}
    main.create(JOBS, stranger, "default")
    await rig.servers.stop("sub")
    start(rig)
    make(rig)
    await eventually(lambda: job(rig, "main") is not None, WITHIN)
    assert sub.get(JOBS, "default", NAME) is None
    end(rig, "main", "Complete", "stranger")
    before = main.get(JOBS, "default", "stranger")
    await rig.servers.start("sub")
    await eventually(lambda: job(rig, "sub") is not None, AFTER_RETURN)
    assert main.get(JOBS, "default", "stranger") == before
