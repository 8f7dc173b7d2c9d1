"""Types, versions and objects may have every name that Kubernetes allows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_proto.resources import Resource
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually
from support.rigs.watcher import Rig
from support.wire.kubernetes_names import API_VERSIONS, DNS_1035, KINDS, SUBDOMAINS

Names = tuple[str, str, str, str, str]
TYPES: st.SearchStrategy[Names] = st.tuples(
    API_VERSIONS, DNS_1035, KINDS, KINDS, SUBDOMAINS
).filter(lambda names: names[2].lower() != names[3].lower())
"""Version, plural, kind, kind of lists, and the name of an object."""


def custom(group: str, version: str, plural: str, kind: str, list_kind: str) -> dict[str, Any]:
    crd = definition(group, plural, kind, version)
    crd["spec"]["names"]["listKind"] = list_kind
    return crd


@pytest.mark.parametrize(
    ("version", "plural", "kind", "list_kind"),
    [
        ("v1", "lanterns", "Lantern", "LanternCollection"),
        ("internal", "lanterns", "lantern", "Lanterns"),
        ("version7", "list", "List", "listList"),
        ("v2alpha1", "v1", "V1List", "ListOfV1"),
        ("foo", "a", "x-Y", "l"),
    ],
)
async def test_a_custom_type_is_listed_and_watched_whatever_it_is_called(
    rig: Rig, version: str, plural: str, kind: str, list_kind: str
):
    type_name = f"lab.example.org/{version}/{plural}"
    rig.cluster.create(CRDS, custom("lab.example.org", version, plural, kind, list_kind))
    rig.cluster.create(type_name, {"metadata": {"name": "hall"}}, "default")
    rig.start(resources=(type_name,))
    await eventually(lambda: rig.ends(plural))
    rig.cluster.create(type_name, {"metadata": {"name": "attic"}}, "default")
    await eventually(lambda: rig.is_mirrored(type_name))
    assert (await rig.mirror(plural)).keys() == {"hall", "attic"}
    assert {event.kind for event in await rig.events(plural)} == {kind}


@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(TYPES, min_size=5, max_size=5, unique_by=lambda each: each[1]))
async def test_a_client_lists_whatever_a_definition_may_be_called(types: list[Names]):
    cluster = Cluster("eu1")
    for number, (version, plural, kind, list_kind, name) in enumerate(types):
        crd = custom(f"{number}.example.org", version, plural, kind, list_kind)
        cluster.create(CRDS, crd)
        cluster.create(
            f"{number}.example.org/{version}/{plural}", {"metadata": {"name": name}}, "default"
        )
    async with (
        serve([cluster]) as servers,
        KubeClient(KubeConfig(json.dumps(servers.kubeconfig()))) as client,
    ):
        for number, (version, plural, kind, _, name) in enumerate(types):
            resource = Resource(f"{number}.example.org", version, plural)
            (listed,) = await client.list(resource)
            assert (listed["kind"], listed["metadata"]["name"]) == (kind, name)
            served = await client.discovery.by_name(str(resource))
            assert served is not None
            assert (served.resource, served.kind) == (resource, kind)
