"""Runs the example: scenario T14 in short; tests/scenarios has it whole."""

import pathlib

import pytest
import yaml

from fleetbus.controller.load import load_controllers
from fleetbus.testing import controller_test

FOLDER = pathlib.Path(__file__).parent
CRDS = "apiextensions.k8s.io/v1/customresourcedefinitions"
TESTS, JOBS = "examples.fleetbus.dev/v1/tests", "batch/v1/jobs"


async def test_the_example_runs_a_test_in_every_cluster_and_tells_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FLEETBUS_EXAMPLE_MAIN", raising=False)
    controllers = load_controllers([str(FOLDER / "controller.py")])
    async with controller_test(*controllers, clusters=["cluster1", "cluster2"]) as t:
        main, sub = t.clusters["cluster1"], t.clusters["cluster2"]
        main.create(CRDS, yaml.safe_load((FOLDER / "crd.yaml").read_text()))
        main.create(TESTS, yaml.safe_load((FOLDER / "test-sample.yaml").read_text()))
        await t.run_until_idle()
        for cluster in (main, sub):
            job = cluster.get(JOBS, "default", "test-sample")
            assert job is not None
            assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "busybox"
        test = main.get(TESTS, "default", "test-sample")
        assert test is not None
        assert test["status"]["clusters"] == {"cluster1": "running", "cluster2": "running"}
        main.delete(TESTS, "default", "test-sample")
        await t.run_until_idle()
        assert main.get(TESTS, "default", "test-sample") is None
        assert not main.list(JOBS) + sub.list(JOBS)
