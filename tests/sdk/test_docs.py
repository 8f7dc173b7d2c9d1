"""docs/coming-from.md, concepts.md and sdk.md name what is there, and their code runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

import fleetbus
from fleetbus.controller.load import load_controllers
from fleetbus.intake.last_runs import KEPT
from fleetbus.process import metrics
from fleetbus.snapshot.records import ANSWERED_WITHIN
from fleetbus.testing import EmulatedCluster, controller_test
from fleetbus.workqueue.queue import QueuePolicy

DOCS = Path(__file__).parents[2] / "docs"
COMING = (DOCS / "coming-from.md").read_text(encoding="utf-8")
SDK = (DOCS / "sdk.md").read_text(encoding="utf-8")
CONCEPTS = (DOCS / "concepts.md").read_text(encoding="utf-8")
RULES = ("A4", "D1", "P2", "P8", "P12", "P14", "Q1", "Q12", "R1", "R10")


def _python(page: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    return blocks[0]


def _deployment() -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]},
    }
    return {"selector": {"matchLabels": {"app": "web"}}, "template": template}


async def test_the_controller_beside_the_one_in_go_exposes_a_deployment(tmp_path: Path) -> None:
    file = tmp_path / "expose.py"
    file.write_text(_python(COMING), encoding="utf-8")
    (expose,) = load_controllers([str(file)])
    spec = _deployment()
    async with controller_test(expose, clusters=["a", "b"]) as t:
        for name, labels in (("shown", {"expose": "yes"}), ("hidden", {})):
            obj = {"metadata": {"name": name, "labels": labels}, "spec": spec}
            t.clusters["b"].create("apps/v1/deployments", obj, "default")
        await t.run_until_idle()
        names = [
            service["metadata"]["name"]
            for service in t.clusters["b"].list("v1/services", "default")
        ]
        assert "shown" in names
        assert "hidden" not in names
        t.clusters["b"].delete("v1/services", "default", "shown")
        await t.run_until_idle()
        found = t.clusters["b"].get("v1/services", "default", "shown")
        assert found is not None
        assert found["spec"]["selector"] == {"app": "web"}
        assert t.clusters["a"].get("v1/services", "default", "shown") is None


async def test_the_watches_of_the_sdk_page_filter_as_it_says(tmp_path: Path) -> None:
    file = tmp_path / "notes.py"
    file.write_text(_python(SDK.partition("## Watches")[2].partition("\n### ")[0]))
    (notes,) = load_controllers([str(file)])
    async with controller_test(notes, clusters=["prod-a", "dev"]) as t:
        prod = t.clusters["prod-a"]
        for name, metadata in (
            ("web", {}),
            ("ignored", {"annotations": {"example.com/ignore": ""}}),
            ("red", {"labels": {"team": "red"}}),
        ):
            obj = {
                "metadata": {"name": name, "labels": {"team": "blue"}} | metadata,
                "spec": _deployment(),
            }
            for cluster in (prod, t.clusters["dev"]):
                cluster.create("apps/v1/deployments", obj, "default")
        await t.run_until_idle()
        assert _notes(prod) == {"web-note": "1"}
        assert _notes(t.clusters["dev"]) == {}
        runs = len(t.requests)
        prod.patch("apps/v1/deployments", "default", "web", {"metadata": {"labels": {"x": "y"}}})
        await t.run_until_idle()
        assert len(t.requests) == runs, "the generation is the same"
        prod.patch("apps/v1/deployments", "default", "web", {"spec": {"replicas": 3}})
        await t.run_until_idle()
        assert _notes(prod) == {"web-note": "3"}
        gone = {"metadata": {"labels": {"team": "red"}}}
        prod.patch("apps/v1/deployments", "default", "web", gone)
        await t.run_until_idle()
        assert _notes(prod) == {}


async def test_the_map_of_the_sdk_page_restarts_who_names_the_changed_object(
    tmp_path: Path,
) -> None:
    file = tmp_path / "restarter.py"
    file.write_text(_python(SDK.partition("### One object wakes another")[2].partition("\n## ")[0]))
    (restarter,) = load_controllers([str(file)])
    async with controller_test(restarter, clusters=["a", "b"]) as t:
        named = {"annotations": {"example.com/settings": "settings"}}
        for cluster in (t.clusters["a"], t.clusters["b"]):
            cluster.create("v1/configmaps", {"metadata": {"name": "settings"}}, "default")
            for name, metadata in (("web", named), ("other", {})):
                obj = {"metadata": {"name": name, **metadata}, "spec": _deployment()}
                cluster.create("apps/v1/deployments", obj, "default")
        await t.run_until_idle()
        marks = _settings_versions(t.clusters["a"])
        assert (marks["other"], bool(marks["web"])) == ("", True)
        t.clusters["a"].patch("v1/configmaps", "default", "settings", {"data": {"x": "y"}})
        before = _settings_versions(t.clusters["b"])
        await t.run_until_idle()
        settings = t.clusters["a"].get("v1/configmaps", "default", "settings")
        assert settings is not None
        version = settings["metadata"]["resourceVersion"]
        assert _settings_versions(t.clusters["a"]) == {"web": version, "other": ""}
        assert _settings_versions(t.clusters["b"]) == before


def _settings_versions(cluster: EmulatedCluster) -> dict[str, str]:
    deployments = cluster.list("apps/v1/deployments", "default")
    return {
        deployment["metadata"]["name"]: deployment["spec"]["template"]["metadata"]
        .get("annotations", {})
        .get("example.com/settings-version", "")
        for deployment in deployments
    }


def _notes(cluster: EmulatedCluster) -> dict[str, str]:
    config_maps = cluster.list("v1/configmaps", "default")
    return {
        config_map["metadata"]["name"]: config_map["data"]["replicas"]
        for config_map in config_maps
        if config_map["metadata"]["name"].endswith("-note")
    }


def test_every_name_of_the_tables_exists() -> None:
    named = set(re.findall(r"\bfleetbus\.([A-Za-z_]+)", COMING)) - {"dev", "events", "testing"}
    assert len(named) > 8
    assert named <= set(fleetbus.__all__)
    methods = set(re.findall(r"\bfleet\.([a-z]\w*)\(", COMING))
    assert methods >= {"cluster", "list", "get_all", "wait"}
    assert [name for name in methods if not hasattr(fleetbus.Fleet, name)] == []
    asked = set(re.findall(r"\bcluster\.([a-z]\w*)\(", COMING))
    assert asked >= {"get", "list", "event", "patch"}
    assert [name for name in asked if not hasattr(fleetbus.Cluster, name)] == []
    parameters = set(inspect.signature(fleetbus.Controller).parameters)
    keywords = set(re.findall(r"(\w+)=", " ".join(re.findall(r"Controller\(([^)]*)\)", COMING))))
    assert keywords >= {"concurrency", "follow_fleet", "timeout"}
    assert keywords <= parameters


def test_every_metric_of_the_tables_exists() -> None:
    assert metrics.RECONCILES is not None
    known = {family.name for family in REGISTRY.collect()}
    reported = set(re.findall(r"`(fleetbus_\w+?)(?:_total)?`", COMING + SDK))
    assert len(reported) >= 10
    assert reported <= known


def test_the_numbers_of_the_concepts_are_those_of_the_code() -> None:

    policy = QueuePolicy()
    seconds = policy.lease.total_seconds()
    assert f"belongs to one worker for {seconds:.0f} s" in CONCEPTS
    first, longest = policy.backoff.first, policy.backoff.limit
    assert f"after {first.total_seconds() * 1000:.0f} ms" in CONCEPTS
    assert f"up to {longest.total_seconds():,.0f} s" in CONCEPTS
    assert f"in the last {ANSWERED_WITHIN.total_seconds():.0f} s" in CONCEPTS
    assert policy.reclaims == 3
    assert "die three times in ten minutes" in CONCEPTS
    timeout = fleetbus.Controller("x").timeout.total_seconds()
    assert f"a time limit, {timeout:.0f} s by default" in CONCEPTS


def test_every_promise_of_the_sdk_names_its_rule() -> None:
    section = CONCEPTS.partition("## What the SDK promises")[2].partition("\n## ")[0]
    reported = set(re.findall(r"\b([A-Z]\d+)\b", section))
    assert reported >= set(RULES)
    for point in re.findall(r"^- \*\*.*?(?=^- |^$)", section, re.MULTILINE | re.DOTALL):
        assert re.search(r"\([A-Z]\d+", point), point


def test_what_is_reported_of_the_last_runs_is_what_is_kept() -> None:
    assert f"the last runs of {KEPT:,} requests" in CONCEPTS
