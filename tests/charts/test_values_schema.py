"""Wrong values are refused, and the refusal names the key."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
import yaml

from fleetbus_watcher.settings import Selection
from support.api.rendered_chart import (
    CHART,
    EU1,
    VALUES,
    Object,
    helm,
    render,
    render_files,
)
from support.api.wrong_values import WRONG
from support.rows import each_row


@pytest.mark.slow
@each_row(("values", "message"), WRONG)
def test_a_wrong_value_is_refused_and_named(values: Object, message: str):
    with pytest.raises(helm().HelmError) as refused:
        render_files(values)
    assert message in str(refused.value)


@each_row("resource", ["v1/*", "apps/v1/*", "v1/pods*", "v1/"])
def test_s7_the_hub_is_never_watched_with_a_wildcard_in_its_rights(resource: str):
    watch = {"resources": [resource]}
    with pytest.raises(helm().HelmError) as refused:
        render_files({"watchers": {"clusters": [{"name": "hub", "watch": watch}]}})
    assert "watch.resources[0]: " in str(refused.value)
    assert "is not a resource" in str(refused.value)


def test_credentials_in_an_address_are_refused_and_not_repeated():
    values: Object = {
        "nats": {"embedded": {"enabled": False}, "external": {"url": "nats://me:s3cret@n:4222"}}
    }
    with pytest.raises(helm().HelmError) as refused:
        render_files({**values, "nats": {**values["nats"]}})
    assert "nats.external" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_every_key_has_a_description_and_nothing_else_is_allowed():
    schema = json.loads((CHART / "values.schema.json").read_text())
    bare: list[str] = []

    def walk(node: Any, place: str) -> None:
        if not isinstance(node, dict):
            return
        if "properties" in node and "if" not in place:
            if node.get("additionalProperties") is not False:
                bare.append(f"{place}: additionalProperties")
            for name, inner in cast("Object", node["properties"]).items():
                if "$ref" not in inner and not inner.get("description"):
                    bare.append(f"{place}.{name}: description")
                walk(inner, f"{place}.{name}")
        for key in ("items", "additionalProperties"):
            walk(node.get(key), f"{place}[{key}]")

    walk(schema, "")
    for name, inner in schema["$defs"].items():
        walk(inner, name)
    assert bare == []


OPEN = frozenset(
    {
        "global",
        *("nodeAffinity", "podAffinity", "podAntiAffinity"),
        *("podSelector", "namespaceSelector"),
    }
)
"""Objects of the Kubernetes API, which the API server checks, and what a parent chart shares."""


def test_every_map_says_which_keys_it_may_have():
    schema = json.loads((CHART / "values.schema.json").read_text())
    places: list[str] = []

    def walk(node: Any, place: str) -> None:
        if isinstance(node, list):
            for inner in cast("list[Any]", node):
                walk(inner, place)
        if not isinstance(node, dict):
            return
        fields = cast("Object", node)
        if "object" in fields.get("type", ()) and "additionalProperties" not in fields:
            places.append(place)
        for key, inner in fields.items():
            walk(inner, key)

    walk(schema, "")
    assert set(places) == OPEN


RESOURCES = [
    *("pods", "v1/pods", "core/v1/pods", "apps/v1/deployments", "deployments.apps", "*"),
    *("networking.k8s.io/v1/ingresses", "apps.v1.deployments", "apps/deployments", "v1/"),
    *("a/b/v1/c", "v1/Pods", "apps/v01/deployments", "pods/v1", "-a", "v1/pods/", "x/v1a/y"),
    *("lab.example.org/internal/lanterns", "lanterns.internal.lab.example.org", "v0/pods"),
    *("v1.example.org/foo/bars", "a.b/c.d/e", "a/b/c/d", "v1/apps/deployments"),
]


def test_the_chart_and_the_watcher_accept_the_same_names_of_resources():
    def render_watch_of(*names: str) -> None:
        watch = {"resources": names}
        render_files({"watchers": {"clusters": [{**EU1, "watch": watch}]}})

    accepted = list[str]()
    for name in RESOURCES:
        try:
            Selection.model_validate(name)
        except ValueError:
            with pytest.raises(helm().HelmError, match="is not a resource"):
                render_watch_of(name)
        else:
            accepted.append(name)
    render_watch_of(*accepted)


def test_every_default_value_is_in_the_schema_and_the_other_way_round():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.load((CHART / "values.yaml").read_text(), yaml.CSafeLoader)
    assert set(values) == set(schema["properties"]) - {"global"}


@pytest.mark.slow
def test_values_that_matter_are_accepted():
    for values in VALUES.values():
        assert render(values)
