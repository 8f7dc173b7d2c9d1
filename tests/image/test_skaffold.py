"""`skaffold dev` builds our image and installs the chart with values that it accepts."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any, cast

import pytest
import yaml

from support.api.rendered_chart import Object, of_kind, pods, render
from support.processes.host_build import ROOT

CONFIG: Object = yaml.load((ROOT / "skaffold.yaml").read_text(), yaml.CSafeLoader)
(RELEASE,) = cast("list[Object]", CONFIG["deploy"]["helm"]["releases"])
BUILT = {"{{.IMAGE_REPO_fleetbus}}": "fleetbus", "{{.IMAGE_TAG_fleetbus}}": "3f2a"}
# The names of https://skaffold.dev/docs/references/yaml/ that a release may use here.
KEYS = {"name", "namespace", "createNamespace", "chartPath", "valuesFiles", "setValueTemplates"}


def patched() -> Object:
    """The release with the profile `dev`."""
    (profile,) = CONFIG["profiles"]
    (patch,) = profile["patches"]
    assert profile["name"] == "dev"
    assert patch["op"] == "add"
    place = re.fullmatch(r"/deploy/helm/releases/0/(\w+)", patch["path"])
    assert place
    return RELEASE | {place[1]: patch["value"]}


def values(release: Object) -> Object:
    """The values that skaffold gives helm: the files, and what the templates become."""
    found: Object = {}
    for file in release.get("valuesFiles", []):
        found |= yaml.load((ROOT / file).read_text(), yaml.CSafeLoader)
    for key, template in release["setValueTemplates"].items():
        *parents, last = key.split(".")
        node: Any = found
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = BUILT[template]
    return found


@pytest.mark.parametrize("release", [RELEASE, patched()], ids=["default", "dev"])
def test_the_chart_renders_with_the_values_of_skaffold_and_runs_the_image_that_it_built(
    release: Object,
):
    assert set(release) <= KEYS
    assert (ROOT / release["chartPath"] / "Chart.yaml").exists()
    images: set[str] = set()
    for _, pod in pods(render(values(release), name=release["name"])):
        images |= {container["image"] for container in pod["containers"]}
    assert "fleetbus:3f2a" in images
    assert {one.partition(":")[0] for one in images} == {"fleetbus", "nats", "valkey/valkey"}


def test_the_profile_runs_one_of_each_and_asks_for_less_than_a_laptop_has():
    rendered = render(values(patched()))
    workloads = of_kind(rendered, "Deployment", "StatefulSet")
    assert len(workloads) == 7
    assert {one["spec"]["replicas"] for one in workloads} == {1}
    millicores = 0
    for _, pod in pods(rendered):
        for container in pod["containers"]:
            millicores += int(container["resources"]["requests"]["cpu"].removesuffix("m"))
    assert millicores <= 200
    assert of_kind(rendered, "NetworkPolicy")  # as in production


def test_the_image_is_the_one_of_the_dockerfile():
    (artifact,) = CONFIG["build"]["artifacts"]
    assert artifact["image"] == "fleetbus"
    assert (ROOT / artifact["context"] / artifact["docker"]["dockerfile"]).exists()
    assert "sync" not in artifact, "the file system of a pod is read-only"


def test_skaffold_itself_reads_it_and_knows_the_profile():
    skaffold = shutil.which("skaffold") or pytest.skip("skaffold is not installed")
    command = [skaffold, "diagnose", "--yaml-only", "--profile", "dev"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "charts/fleetbus/examples/dev.yaml" in done.stdout
