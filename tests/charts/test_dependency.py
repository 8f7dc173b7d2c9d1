"""The chart as a dependency of another chart, as platform teams bundle it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.api.rendered_chart import CHART, NAMESPACE, SEED, Object, helm, of_kind


def render_parent(folder: Path, fleetbus: Object, dependency: Object, values: Object) -> list[Any]:
    """The objects of a chart that depends on this one."""
    chart = folder / "platform"
    (chart / "templates").mkdir(parents=True)
    shutil.copytree(CHART, chart / "charts" / "fleetbus")
    dependencies = [{"name": "fleetbus", "version": "*", "repository": "", **dependency}]
    metadata = {"apiVersion": "v2", "name": "platform", "version": "1.0.0"}
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**metadata, "dependencies": dependencies}))
    key = dependency.get("alias", "fleetbus")
    seeded = {"credentials": {"seed": SEED}, **fleetbus}
    (chart / "values.yaml").write_text(yaml.safe_dump({**values, key: seeded}))
    with helm().Chart.load(str(chart)) as loaded:
        files = loaded.render({}, name="fb", namespace=NAMESPACE)
    texts = [text for path, text in files.items() if path.endswith(".yaml")]
    return [made for text in texts for made in yaml.load_all(text, yaml.CSafeLoader) if made]


CONDITION: Object = {"condition": "fleetbus.enabled"}
RENDERED: list[tuple[Object, Object, Object]] = [
    ({}, {}, {}),
    ({"enabled": True}, {}, {}),
    ({"enabled": True}, CONDITION, {}),
    ({}, CONDITION, {}),
    ({}, {"tags": ["data"]}, {"tags": {"data": True}}),
    ({"enabled": True}, {"alias": "bus", "condition": "bus.enabled"}, {}),
    ({}, {}, {"global": {"imageRegistry": "registry.example.com", "storageClass": "fast"}}),
    ({"enabled": True, "pods": {"securityContext": {"fsGroup": "platform"}}}, CONDITION, {}),
]


@pytest.mark.parametrize(("fleetbus", "dependency", "values"), RENDERED)
def test_a_parent_chart_renders_it(
    tmp_path: Path, fleetbus: Object, dependency: Object, values: Object
):
    objects = render_parent(tmp_path, fleetbus, dependency, values)
    deployments = of_kind(objects, "Deployment")
    assert len(deployments) == 5
    ids = fleetbus.get("pods", {}).get("securityContext", {})
    for deployment in deployments:
        security = deployment["spec"]["template"]["spec"]["securityContext"]
        assert ("fsGroup" in security) is (ids == {})


@pytest.mark.parametrize(
    ("fleetbus", "dependency", "values"),
    [
        ({"enabled": False}, CONDITION, {}),
        ({}, {"tags": ["data"]}, {"tags": {"data": False}}),
    ],
)
def test_a_parent_chart_leaves_it_out(
    tmp_path: Path, fleetbus: Object, dependency: Object, values: Object
):
    assert render_parent(tmp_path, fleetbus, dependency, values) == []


def test_a_parent_that_disables_it_without_a_condition_is_refused(tmp_path: Path):
    with pytest.raises(helm().HelmError, match="name it as the condition"):
        render_parent(tmp_path, {"enabled": False}, {}, {})
