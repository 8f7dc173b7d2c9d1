"""Short names, singulars and plurals of resources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from fleetbus.kube.resource_names import CATEGORIES, names_of, with_plural
from fleetbus_proto.resources import parse_resource_name
from support.rows import each_row


@each_row(
    ("word", "resolved"),
    [
        ("deploy", ("apps", None, "deployments")),
        ("pod", ("core", None, "pods")),
        ("v1/po", ("core", "v1", "pods")),
        ("cm", ("core", None, "configmaps")),
        ("ing", ("networking.k8s.io", None, "ingresses")),
        ("ev", (None, None, "events")),  # of two groups
        ("pods", (None, None, "pods")),
        ("widget", (None, None, "widget")),
        ("job.example.com", ("example.com", None, "job")),  # somebody else's
    ],
)
def test_singulars_and_short_names_resolve_as_in_kubectl(
    word: str, resolved: tuple[str | None, str | None, str]
):
    assert with_plural(parse_resource_name(word)[0]) == resolved


def test_the_names_of_built_in_types_are_those_of_kubernetes():
    """`python tests/run.py query_api.tables.record` reads them from the sources of a release."""
    recorded = json.loads((Path(__file__).parent / "resource-names-1.37.2.json").read_text())
    plain: dict[str, list[str]] = {"shortNames": [], "categories": []}

    names = {key: _names(key) for key in recorded | dict.fromkeys(CATEGORIES, plain)}

    assert names == recorded


def _names(key: str) -> dict[str, Any]:
    singular, *short = names_of(key) or [""]
    return {
        "singular": singular,
        "shortNames": short,
        "categories": list(CATEGORIES.get(key, ())),
    }


def test_the_names_of_our_types_are_those_of_their_definitions():
    files = (Path(__file__).parents[3] / "charts/fleetbus/files/crds").glob("*.yaml")
    specs = [yaml.safe_load(file.read_text())["spec"] for file in files]
    named = {f"{each['group']}/{each['names']['plural']}": each["names"] for each in specs}

    for key in ("fleetbus.dev/clusters", "fleetbus.dev/multiclusterresources"):
        assert list(names_of(key)) == [named[key]["singular"], *named[key]["shortNames"]]
