"""Settings, commands and metrics that the rendered objects name exist."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from fleetbus.process.log_levels import read_levels
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_archiver.settings import ArchiverSettings
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_query_api.settings import QueryApiSettings
from fleetbus_reconciler.settings import ReconcilerSettings
from fleetbus_watcher.settings import PoolSettings, WatcherSettings
from support.api.rendered_chart import CHART, SHOP, VALUES, Object, find, of_kind, render

ROOT = CHART.parents[1]
KINDS: dict[str, list[Any]] = {
    "fleetbus-watcher": [WatcherSettings, PoolSettings],
    "fleetbus-reconciler": [ReconcilerSettings],
    "fleetbus-distributor": [DistributorSettings],
    "fleetbus-query-api": [QueryApiSettings],
    "fleetbus-archiver": [ArchiverSettings],
}
OTHERS = {"POD_IP"}


def environment(deployment: Object, folder: str) -> tuple[str, dict[str, str]]:
    """Command and environment, as kubelet would give them."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    variables: dict[str, str] = {}
    for variable in container["env"]:
        value = variable.get("value", "10.0.0.7")
        variables[variable["name"]] = value.replace("$(POD_IP)", "10.0.0.7").replace(
            "/etc/", f"{folder}/"
        )
    return container["command"][0], variables


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_variable_is_a_setting_and_every_value_is_valid(
    values: Object, monkeypatch: pytest.MonkeyPatch
):
    if "nats_username" not in SharedSettings.model_fields:
        pytest.skip("logins by files are not settings yet")
    for deployment in of_kind(render(values), "Deployment"):
        command, variables = environment(deployment, "/tmp")  # noqa: S108 -- only the form counts
        kinds = [SharedSettings, *KINDS[command]]
        setting_names = {
            f"{kind.model_config.get('env_prefix')}{field}".upper()
            for kind in kinds
            for field in kind.model_fields
        }
        assert set(variables) - OTHERS <= setting_names, deployment["metadata"]["name"]
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            for kind in kinds:
                more = {"cluster": "eu1"} if kind is WatcherSettings else {}
                load_settings(kind, **more)


def test_controllers_in_the_pods_of_the_projector_have_their_image_and_their_settings():
    shop = {**SHOP, "env": {"SHOP": "open"}}
    objects = render(VALUES["one process"] | {"reconcilers": [shop]})
    names = {one["metadata"]["name"] for one in of_kind(objects, "Deployment")}
    assert "fb-fleetbus-projector" in names
    assert "fb-fleetbus-reconciler-shop" not in names
    projector = find(objects, "Deployment", "fb-fleetbus-projector")
    (container,) = projector["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/shop:1"
    _, variables = environment(projector, "")
    assert variables["FLEETBUS_RECONCILER_PROJECTOR"] == "true"
    assert variables["FLEETBUS_RECONCILER_MODULES"] == '["shop.controllers"]'
    assert variables["SHOP"] == "open"
    (role,) = (
        one
        for one in of_kind(objects, "ClusterRole")
        if one["metadata"]["name"].endswith("fb-fleetbus-projector")
    )
    assert SHOP["rules"][0] in role["rules"]
    apart = render({"reconcilers": [SHOP]})
    variables = environment(find(apart, "Deployment", "fb-fleetbus-projector"), "")[1]
    assert "FLEETBUS_RECONCILER_MODULES" not in variables


def test_where_members_decide_the_query_api_knows_the_providers():
    objects = render(VALUES["members decide"])
    _, variables = environment(find(objects, "Deployment", "fb-fleetbus-query-api"), "")
    assert variables["FLEETBUS_QUERY_API_AUTHORITY"] == "member"
    assert json.loads(variables["FLEETBUS_PROVIDERS"])[0]["namespace"] == "fleetbus-clusters"
    assert variables["FLEETBUS_HUB_CLUSTER"] == "hub"
    _, variables = environment(find(render({}), "Deployment", "fb-fleetbus-query-api"), "")
    assert variables["FLEETBUS_QUERY_API_AUTHORITY"] == "hub"
    assert "FLEETBUS_PROVIDERS" not in variables


def test_every_command_is_in_the_image():
    dockerfile = (ROOT / "Dockerfile").read_text()
    scripts: set[str] = {"python"}
    for path in [ROOT / "cli/pyproject.toml", *ROOT.glob("services/*/pyproject.toml")]:
        project = tomllib.loads(path.read_text())["project"]
        assert f"--package {project['name']}" in dockerfile
        scripts |= set(project.get("scripts", {}))
    objects = render(VALUES["everything"])
    specs = [obj["spec"]["template"]["spec"] for obj in of_kind(objects, "Deployment")]
    specs += [pod["spec"] for pod in of_kind(objects, "Pod")]
    used = {container["command"][0] for spec in specs for container in spec["containers"]}
    assert used <= scripts
    assert used >= {"fleetbus-watcher", "fleetbus-reconciler", "fleetbus-distributor", "python"}


def test_the_image_runs_as_the_user_of_the_pods():
    assert "USER 10001" in (ROOT / "Dockerfile").read_text()


def _metrics() -> set[str]:
    """Every metric in the code, with the ends that Prometheus adds."""
    metrics: set[str] = {"up"}
    for path in [*ROOT.glob("sdk/fleetbus/**/*.py"), *ROOT.glob("services/**/*.py")]:
        text = path.read_text()
        for kind, name in re.findall(r"\b(Counter|Gauge|Histogram)\(\s*\"(fleetbus_\w+)\"", text):
            ends = {
                "Counter": ["_total"],
                "Gauge": [""],
                "Histogram": ["_bucket", "_count", "_sum"],
            }
            metrics |= {name.removesuffix("_total") + end for end in ends[kind]}
    return metrics


def test_every_metric_of_alerts_and_dashboards_exists():
    alerts = yaml.load((CHART / "files/alerts.yaml").read_text(), yaml.CSafeLoader)
    texts = [alert["expr"] for alert in alerts]
    for path in (CHART / "files/dashboards").glob("*.json"):
        panels = json.loads(path.read_text())["panels"]
        texts += [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for text in texts for name in re.findall(r"\bfleetbus_\w+", text)}
    assert len(used) > 20
    assert used <= _metrics()


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    rule = find(render(VALUES["everything"]), "PrometheusRule", "fb-fleetbus-alerts")
    alerts = rule["spec"]["groups"][0]["rules"]
    page = (ROOT / "docs/operations/alerts.md").read_text()
    headings = re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert sorted(headings) == sorted(alert["alert"] for alert in alerts)
    for one in alerts:
        url = one["annotations"]["runbook_url"]
        assert url.endswith(f"docs/operations/alerts.md#{one['alert'].lower()}")
        assert one["labels"]["severity"] in ("info", "warning", "critical")
    assert "@BUCKET@" not in json.dumps(rule)


def test_a_change_of_a_log_level_restarts_no_pod_and_is_in_the_file_that_pods_follow():
    louder = {
        **VALUES["everything"],
        "log": {"level": "warning", "controllers": {"copier": "debug"}},
    }
    before, after = render(VALUES["everything"]), render(louder)
    assert of_kind(before, "Deployment", "StatefulSet") == of_kind(
        after, "Deployment", "StatefulSet"
    )
    levels = find(after, "ConfigMap", "fb-fleetbus-log")["data"]["levels.yaml"]
    assert read_levels(levels, "levels.yaml") == ("warning", {"copier": "debug"})
    for deployment in of_kind(after, "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (file,) = [v["value"] for v in container["env"] if v["name"] == "FLEETBUS_LOG_LEVELS_FILE"]
        folder = file.removesuffix("/levels.yaml")
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {v["name"]: v for v in deployment["spec"]["template"]["spec"]["volumes"]}
        assert volumes[mounts[folder]]["configMap"] == {"name": "fb-fleetbus-log"}
