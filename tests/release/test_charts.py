"""The charts of a release: every image by its digest, pushed to a registry and read from there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from release.charts import DigestError, package, with_digests
from release.versions import ROOT, version
from support.processes.helm import helm_program
from support.servers.oci_registry import oci_registry

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
IMAGE = f"ghcr.io/fleetbus/fleetbus@{DIGEST}"
STORES = {"nats": DIGEST, "valkey/valkey": DIGEST}
VALUES = (ROOT / "charts" / "fleetbus" / "values.yaml").read_text()


def test_the_values_name_each_image_by_its_digest_and_nothing_else_changes():
    before, after = (yaml.safe_load(text) for text in (VALUES, with_digests(VALUES, IMAGE, STORES)))
    assert after["image"] == before["image"] | {
        "repository": "ghcr.io/fleetbus/fleetbus",
        "digest": DIGEST,
    }
    for store in ("nats", "valkey"):
        assert after[store]["embedded"]["image"].pop("digest") == DIGEST
        assert before[store]["embedded"]["image"].pop("digest") == ""
    after["image"] = before["image"]
    assert after == before


@pytest.mark.parametrize(
    ("values", "image", "stores", "reason"),
    [
        (VALUES, "ghcr.io/fleetbus/fleetbus:0.1.0", STORES, "'' is no digest"),
        (VALUES, f"{IMAGE}0", STORES, "is no digest"),
        (VALUES, IMAGE, {"nats": "latest"}, "nats: 'latest' is no digest"),
        ("log:\n  level: info\n", IMAGE, STORES, "have 0 places"),
    ],
    ids=["tag", "long", "store", "values"],
)
def test_what_names_no_digest_is_refused(
    values: str, image: str, stores: dict[str, str], reason: str
):
    with pytest.raises(DigestError, match=reason):
        with_digests(values, image, stores)


@pytest.mark.parametrize("chart", ["fleetbus", "fleetbus-agent"])
def test_every_chart_has_a_place_for_the_image(chart: str):
    text = with_digests((ROOT / "charts" / chart / "values.yaml").read_text(), IMAGE, STORES)
    image = yaml.safe_load(text)["image"]
    assert (image["repository"], image["digest"]) == tuple(IMAGE.split("@"))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_chart_from_a_registry_is_rendered_with_digests_only(tmp_path: Path):
    helm = helm_program(tmp_path)
    packages = package(tmp_path / "charts", helm.program, IMAGE, STORES)
    with oci_registry(tmp_path / "registry") as host:
        for path in packages:
            helm.done("push", path, f"oci://{host}/charts", "--plain-http")
        shown = helm.done(
            *("template", "fb", f"oci://{host}/charts/fleetbus", "--version", version()),
            "--plain-http",
        )
    images = set(re.findall(r'^\s*(?:- )?image: "?([^"\s]+)', shown, re.MULTILINE))
    assert images == {IMAGE, f"nats@{DIGEST}", f"valkey/valkey@{DIGEST}"}
    assert f"helm.sh/chart: fleetbus-{version()}" in shown


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_registry_that_refuses_is_named(tmp_path: Path):
    helm = helm_program(tmp_path)
    (path, *_) = package(tmp_path / "charts", helm.program, IMAGE, STORES)
    with oci_registry(tmp_path / "registry", is_readonly=True) as host:
        status, shown = helm.run("push", path, f"oci://{host}/charts", "--plain-http")
    assert status != 0
    assert host in shown
