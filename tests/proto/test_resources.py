"""Spellings of resources, in all forms that kubectl and others accept (T19)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import (
    CORE,
    Resource,
    ResourceName,
    is_resource_name,
    parse_resource,
    parse_resource_name,
)
from support.rows import each_row
from support.wire.kubernetes_names import API_GROUPS, API_VERSIONS, PLURALS
from support.wire.strategies import LABELS, RESOURCES, VERSIONS

PODS = Resource("core", "v1", "pods")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
INGRESSES = Resource("networking.k8s.io", "v1", "ingresses")


@each_row(
    ("text", "resource"),
    [
        ("v1.pods", PODS),
        ("core.v1.pods", PODS),
        ("v1/pods", PODS),
        ("core/v1/pods", PODS),
        ("apps.v1.deployments", DEPLOYMENTS),
        ("apps/v1/deployments", DEPLOYMENTS),
        ("v1.apps.deployments", DEPLOYMENTS),
        ("v1/apps/deployments", DEPLOYMENTS),
        ("networking.k8s.io.v1.ingresses", INGRESSES),
        ("networking.k8s.io/v1/ingresses", INGRESSES),
        ("v1.networking.k8s.io.ingresses", INGRESSES),
        ("ingresses.v1.networking.k8s.io", INGRESSES),
        ("autoscaling/v2beta2/horizontalpodautoscalers", None),
    ],
)
def test_t19_a_full_name_in_every_spelling_means_its_resource(text: str, resource: Resource | None):
    expected = resource or Resource("autoscaling", "v2beta2", "horizontalpodautoscalers")
    assert parse_resource(text) == expected


@each_row(
    ("text", "name"),
    [
        ("pods", ResourceName(None, None, "pods")),
        ("po", ResourceName(None, None, "po")),
        ("clusters", ResourceName(None, None, "clusters")),
        ("ingresses.networking.k8s.io", ResourceName("networking.k8s.io", None, "ingresses")),
        ("deployments.apps", ResourceName("apps", None, "deployments")),
        ("pods.v1", ResourceName("core", "v1", "pods")),
    ],
)
def test_t19_a_short_name_leaves_open_what_it_does_not_say(text: str, name: ResourceName):
    assert parse_resource_name(text)[0] == name
    if name.version is None:
        with pytest.raises(InvalidName, match="needs group and version"):
            parse_resource(text)


def test_t19_kubectls_order_is_a_reading_too():
    readings = parse_resource_name("deployments.v1.apps")
    assert readings == (
        ResourceName("deployments", "v1", "apps"),
        ResourceName("apps", "v1", "deployments"),
    )


def test_t19_where_two_parts_look_like_a_version_both_readings_are_given():
    assert parse_resource_name("v2.tools.v1.things") == (
        ResourceName("v2.tools", "v1", "things"),
        ResourceName("tools.v1", "v2", "things"),
    )


@given(RESOURCES)
def test_the_canonical_name_is_read_back(resource: Resource):
    assert parse_resource(str(resource)) == resource
    assert parse_resource(str(resource).replace("/", ".")) == resource


@given(VERSIONS, LABELS)
def test_the_canonical_name_of_the_core_group_is_read_back(version: str, plural: str):
    resource = Resource(CORE, version, plural)
    assert str(resource) == f"{version}/{plural}"
    assert parse_resource(str(resource)) == resource


@given(API_GROUPS, API_VERSIONS, PLURALS)
def test_t19_every_name_that_kubernetes_allows_is_read_back(group: str, version: str, plural: str):
    resource = Resource(group, version, plural)
    assert is_resource_name(group, plural)
    readings = [Resource(g, v, p) for g, v, p in parse_resource_name(str(resource)) if g and v]
    if "." in group:  # as in each definition; others might mean v1/apps/deployments
        assert parse_resource(str(resource)) == resource
        assert readings == [resource]


@each_row(
    "text",
    [
        "lab.example.org/internal/lanterns",
        "lanterns.internal.lab.example.org",
        "lab.example.org.internal.lanterns",
    ],
)
def test_t19_a_version_of_any_name_is_one_of_the_readings(text: str):
    name = ResourceName("lab.example.org", "internal", "lanterns")
    assert name in parse_resource_name(text)


@each_row(
    "text",
    [
        "",
        "/",
        ".",
        "v1/",
        "/v1/pods",
        "v1//pods",
        "apps/deployments",
        "pods/log",
        "apps/v1/deployments/scale",
        "Pods",
        "v1/pods\n",
        "v1/po ds",
        "v1/-pods",
        "*",
        "v1/*",
        "é/v1/pods",
        "../v1/pods",
        "v1/pods?watch=1",
    ],
)
def test_t19_a_malformed_name_is_refused_and_quoted(text: str):
    with pytest.raises(InvalidName) as caught:
        parse_resource(text)
    assert repr(text) in str(caught.value)


@given(st.text(max_size=40) | st.text("./v1abc-", max_size=20))
def test_no_text_makes_the_parser_fail_otherwise(text: str):
    try:
        readings = parse_resource_name(text)
    except InvalidName:
        return
    assert readings
    assert all(reading.plural and reading.group != "" for reading in readings)


def test_a_resource_knows_its_paths():
    assert (PODS.key, PODS.api_version, PODS.api_path) == ("core/pods", "v1", "/api/v1")
    assert DEPLOYMENTS.key == "apps/deployments"
    assert DEPLOYMENTS.api_version == "apps/v1"
    assert DEPLOYMENTS.api_path == "/apis/apps/v1"
