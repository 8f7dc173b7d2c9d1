"""Wrong values are refused, and the refusal names the key."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
import yaml

from support.api.rendered_chart import (
    AUDIT,
    CHART,
    EU1,
    HUB,
    NAMESPACE,
    SHOP,
    VALUES,
    Object,
    helm,
    render,
    render_files,
)

ALL = "*"
WRONG: list[tuple[Object, str]] = [
    ({"watcher": {}}, "watcher"),
    ({"watchers": {"cluster": []}}, "cluster"),
    ({"watchers": {"clusters": [{**EU1, "replica": 2}]}}, "replica"),
    ({"watchers": {"clusters": [{**EU1, "name": "EU_1"}]}}, "/watchers/clusters/0/name"),
    ({"watchers": {"clusters": [{**EU1, "watch": {"resource": []}}]}}, "resource"),
    ({"watchers": {"clusters": [{"replicas": 2}]}}, "missing property 'name'"),
    ({"watchers": {"clusters": [{"name": "eu1"}]}}, "eu1: kubeconfigSecret is missing"),
    ({"watchers": {"clusters": [{"name": "hub"}]}}, "hub: watch.resources is needed"),
    ({"watchers": {"clusters": [EU1, EU1]}}, "two entries have the name eu1"),
    (
        {"watchers": {"clusters": [{**HUB, "watch": {"resources": [ALL]}}]}},
        "on the hub name resources as v1/pods",
    ),
    ({"projector": {"replicas": 0}}, "/projector/replicas"),
    ({"projector": {"replicas": "two"}}, "/projector/replicas"),
    ({"nats": {"embedded": {"replicas": 2}}}, "/nats/embedded/replicas"),
    ({"nats": {"embedded": {"enabled": False}}}, "exactly one of nats.embedded.enabled"),
    ({"nats": {"external": {"url": "nats://n:4222"}}}, "exactly one of nats.embedded.enabled"),
    ({"valkey": {"embedded": {"replicas": 3}}}, "replicas"),
    ({"valkey": {"external": {"url": "http://v"}}}, "/valkey/external/url"),
    ({"valkey": {"embedded": {"enabled": False}}}, "exactly one of valkey.embedded.enabled"),
    ({"reconcilers": [{"name": "shop", "modules": ["a"]}]}, "missing property 'controllers'"),
    ({"reconcilers": [{**SHOP, "controllers": ["projector"]}]}, "no names for controllers"),
    (
        {
            "reconcilers": [
                {**SHOP, "rules": [{"apiGroups": [ALL], "resources": ["pods"], "verbs": ["get"]}]}
            ]
        },
        "/reconcilers/0/rules/0/apiGroups/0",
    ),
    (
        {"externalSubscribers": [{**AUDIT, "subjects": ["fleetbus.>"]}]},
        "/externalSubscribers/0/sub",
    ),
    (
        {"externalSubscribers": [{**AUDIT, "subjects": ["$JS.>"]}]},
        "/externalSubscribers/0/subjects",
    ),
    ({"externalSubscribers": [{**AUDIT, "durable": "projector"}]}, "belongs to somebody else"),
    (
        {"reconcilers": [SHOP], "externalSubscribers": [{**AUDIT, "durable": "shop-a"}]},
        "belongs to somebody else",
    ),
    ({"credentials": {"seed": "short"}}, "/credentials/seed"),
    ({"clusters": {"namespace": NAMESPACE}}, "may not be the namespace of the release"),
    ({"clusters": {"providers": [{"type": "secrets"}]}}, "missing property 'namespace'"),
    ({"queryApi": {"ingress": {"enabled": True, "host": "a.example"}}}, "tlsSecretName"),
    ({"image": {"digest": "latest"}}, "/image/digest"),
    ({"log": {"level": "loud"}}, "/log/level"),
]


@pytest.mark.parametrize(("values", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_value_is_refused_and_named(values: Object, said: str):
    with pytest.raises(helm().HelmError) as refused:
        render_files(values)
    assert said in str(refused.value)


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


def test_every_default_value_is_in_the_schema_and_the_other_way_round():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}


def test_values_that_matter_are_accepted():
    for values in VALUES.values():
        assert render(values)
