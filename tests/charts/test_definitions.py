"""The definitions of our custom resources refuse and default as the distributor does.

The emulated API server does not evaluate CEL; the rules written in it are in
test_real_api_server.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from fleetbus_distributor.errors import SpecError
from fleetbus_distributor.render.spec import Spec, read_spec
from fleetbus_distributor.selectors import MAX_NAMES
from fleetbus_emulator.apiserver import ApiError, Cluster
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.rows import each_row

RESOURCES = "fleetbus.dev/v1alpha1/multiclusterresources"
CLUSTERS = "fleetbus.dev/v1alpha1/clusters"
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
SECRET = {"namespace": "fleetbus-clusters", "name": "eu1"}


@pytest.fixture
def hub() -> Cluster:
    cluster = Cluster("hub")
    for crd in crds():
        cluster.create(CRDS, crd)
    return cluster


def create(hub: Cluster, **spec: Any) -> dict[str, Any]:
    body = {"metadata": {"name": "a"}, "spec": {"template": MAP, **spec}}
    return hub.create(RESOURCES, body, "default")


@pytest.mark.parametrize("policy", [{}, {"policy": {}}, {"policy": {"fuse": {"objects": 3}}}])
def test_a_stored_object_means_what_was_written(hub: Cluster, policy: dict[str, Any]):
    spec = {"template": MAP, **policy}
    created = create(hub, **policy)
    assert read_spec(created) == read_spec({"spec": spec})


def test_the_defaults_are_visible_on_the_object_and_those_of_the_distributor(hub: Cluster):
    policy_shown = create(hub)["spec"]["policy"]
    model = read_spec({"spec": {"template": MAP}}).policy
    assert policy_shown == model.model_dump(mode="json", by_alias=True)


def test_the_defaults_of_a_cluster_are_visible(hub: Cluster):
    body = {"metadata": {"name": "eu1"}, "spec": {"kubeconfigSecretRef": SECRET}}
    assert hub.create(CLUSTERS, body)["spec"] == {
        "access": "Direct",
        "kubeconfigSecretRef": SECRET,
        "insecureSkipTLSVerify": False,
        "allowHTTP": False,
        "suspend": False,
    }


def test_a_cluster_with_an_agent_needs_no_secret(hub: Cluster):
    agent = {"metadata": {"name": "eu1"}, "spec": {"access": "Agent"}}
    assert hub.create(CLUSTERS, agent)["spec"]["access"] == "Agent"
    with pytest.raises(ApiError, match="Agent"):
        hub.create(CLUSTERS, {"metadata": {"name": "eu2"}, "spec": {"access": "Tunnel"}})


def lists_of(schema: Any, definitions: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The maximum of items of each list of a schema, by its path."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    maxima = dict[str, Any]()
    if schema.get("type") == "array":
        maxima[path] = schema.get("maxItems")
        maxima |= lists_of(schema["items"], definitions, f"{path}[]")
    for name, part in schema.get("properties", {}).items():
        maxima |= lists_of(part, definitions, f"{path}.{name}")
    for part in schema.get("anyOf", ()):
        maxima |= lists_of(part, definitions, path)
    return maxima


def test_every_list_of_a_spec_has_the_same_maximum_in_the_definition_and_in_the_model():
    (crd,) = (crd for crd in crds() if crd["spec"]["names"]["kind"] == "MultiClusterResource")
    (version,) = crd["spec"]["versions"]
    defined = lists_of(version["schema"]["openAPIV3Schema"]["properties"]["spec"], {})
    model = Spec.model_json_schema(by_alias=True)
    modelled = lists_of(model, model["$defs"])
    assert defined == modelled
    assert None not in defined.values()
    assert len(defined) > 15


LONG = [{"name": f"c{number}"} for number in range(MAX_NAMES + 1)]
VALUES = [name["name"] for name in LONG]
EXPRESSION = {"key": "a", "operator": "In", "values": VALUES}


@each_row(
    ("spec", "path"),
    [
        ({"placement": {"clusters": LONG}}, "spec.placement.clusters"),
        ({"placement": {"exclude": LONG}}, "spec.placement.exclude"),
        (
            {"placement": {"clusterSelector": {"matchExpressions": [EXPRESSION]}}},
            "spec.placement.clusterSelector.matchExpressions[0].values",
        ),
        (
            {"rollout": {"waves": [{"name": "a", "clusters": LONG}]}},
            "spec.rollout.waves[0].clusters",
        ),
    ],
)
def test_a_list_of_too_many_names_is_refused_with_its_maximum(
    hub: Cluster, spec: dict[str, Any], path: str
):
    with pytest.raises(ApiError, match=rf"{re.escape(path)}.* must have at most 1000 items"):
        create(hub, **spec)
    with pytest.raises(SpecError) as refused:
        read_spec({"spec": {"template": MAP, **spec}})
    assert str(refused.value) == f"{path}: List should have at most 1000 items, not 1001"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"op": "add", "path": "/a"}, ""),
    ({"op": "test", "path": "/a"}, ""),
    ({"op": "remove", "path": "/a", "type": "merge"}, "type"),
    ({"op": "remove", "path": "a"}, "path"),
    ({"op": "swap", "path": "/a"}, "op"),
]


@pytest.mark.parametrize(("action", "message"), WRONG)
def test_an_action_that_the_distributor_refuses_is_not_stored(
    hub: Cluster, action: dict[str, Any], message: str
):
    with pytest.raises(ApiError, match=rf"action\[0\].*{message}"):
        create(hub, customize={"clusters": [{"name": "a", "action": [action]}]})


@pytest.mark.parametrize("name", ["", "Team_A", "a/b"])
def test_a_secret_that_cannot_exist_is_refused(hub: Cluster, name: str):
    spec = {"kubeconfigSecretRef": {**SECRET, "name": name}}
    with pytest.raises(ApiError, match=r"kubeconfigSecretRef\.name"):
        hub.create(CLUSTERS, {"metadata": {"name": "eu1"}, "spec": spec})
