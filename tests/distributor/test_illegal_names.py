"""Names that no API server accepts are refused with their field, whatever else is missing (D9)."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus.errors import Invalid
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus_distributor.targets.illegal_names import illegal_name
from fleetbus_emulator.apiserver.types import object_meta
from fleetbus_emulator.apiserver.types.builtin import APPS, CORE, RBAC
from fleetbus_proto.resources import parse_resource
from support.rigs.distributor import CONFIG_MAP, Rig
from support.rigs.real_cluster import real_cluster
from support.rows import each_row

Metadata = dict[str, Any]
PLACED = {"clusters": [{"name": "t1"}]}
LONG = "a" * 64

ILLEGAL: list[tuple[Metadata, str]] = [
    ({"namespace": "A b"}, 'metadata.namespace: Invalid value: "A b"'),
    ({"namespace": "a.b"}, 'metadata.namespace: Invalid value: "a.b"'),
    ({"namespace": LONG}, "metadata.namespace: Invalid value: "),
    ({"name": "W_x"}, 'metadata.name: Invalid value: "W_x"'),
    ({"name": "a..b"}, 'metadata.name: Invalid value: "a..b"'),
    ({"name": "a" * 254}, "metadata.name: Invalid value: "),
    ({"generateName": "Ww-"}, 'metadata.generateName: Invalid value: "Ww-"'),
    ({"labels": {"a b": "c"}}, 'metadata.labels: Invalid value: "a b"'),
    ({"labels": {"a/b/c": "c"}}, 'metadata.labels: Invalid value: "a/b/c"'),
    ({"labels": {"/b": "c"}}, 'metadata.labels: Invalid value: "/b"'),
    ({"labels": {"A.b/c": "c"}}, 'metadata.labels: Invalid value: "A.b/c"'),
    ({"labels": {"a": "b c"}}, 'metadata.labels: Invalid value: "b c"'),
    ({"labels": {"a": LONG}}, "metadata.labels: Invalid value: "),
    ({"annotations": {"a b": "c d"}}, 'metadata.annotations: Invalid value: "a b"'),
    ({"annotations": {"": "c"}}, 'metadata.annotations: Invalid value: ""'),
]
LEGAL: list[Metadata] = [
    {"namespace": "0-a"},
    {"name": "a.b-c.0", "generateName": "a-"},
    {"labels": {"A.b_c/": ""}} | {"labels": {"a.b/C_d": "", "x": "A_b.c"}},
    {"annotations": {"A.B/c": "any text\n"}},
]


def config_map(metadata: Metadata) -> dict[str, Any]:
    return {
        **CONFIG_MAP,
        "metadata": {**CONFIG_MAP["metadata"], "namespace": "nowhere", **metadata},
    }


@each_row(("number", "row"), list(enumerate(ILLEGAL)))
async def test_d9_an_illegal_name_does_not_wait_for_its_namespace(
    rig: Rig, number: int, row: tuple[Metadata, str]
):
    metadata, message = row
    name = f"x{number}"
    rig.create(name, template=copy.deepcopy(config_map(metadata)), placement=PLACED)
    await rig.reconcile(name)
    assert rig.states(name) == {"t1": "Failed/Invalid"}
    assert message in rig.entry("t1", name)["message"]


@each_row(("number", "metadata"), list(enumerate(LEGAL)))
async def test_d9_legal_names_wait_for_their_namespace(rig: Rig, number: int, metadata: Metadata):
    name = f"x{number}"
    rig.create(name, template=copy.deepcopy(config_map(metadata)), placement=PLACED)
    await rig.reconcile(name)
    assert rig.states(name) == {"t1": "Waiting/NamespaceMissing"}


@pytest.mark.parametrize(
    ("api_version", "kind", "plural"),
    [
        ("v1", "ConfigMap", "configmaps"),
        ("v1", "Namespace", "namespaces"),
        ("v1", "Event", "events"),
        ("apps/v1", "Deployment", "deployments"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles"),
    ],
)
@given(
    name=st.text("aB0-._/", min_size=1, max_size=6),
    key=st.text("aB0-._/", max_size=6),
    value=st.text("aB0-._ ", max_size=5),
    prefix=st.text("aB-.", max_size=4),
)
def test_d9_no_name_is_refused_that_the_emulator_accepts(
    api_version: str, kind: str, plural: str, name: str, key: str, value: str, prefix: str
):
    rtype = next(one for one in [*CORE, *APPS, *RBAC] if one.plural == plural and one.kind == kind)
    resource = parse_resource(f"{api_version}/{plural}")
    api = ApiResource(resource, kind, rtype.namespaced, frozenset())
    for metadata in (
        {"name": name},
        {"name": "a", "generateName": prefix},
        {"name": "a", "labels": {key: "a"}},
        {"name": "a", "labels": {"a": value}},
        {"name": "a", "annotations": {key: value}},
    ):
        found = illegal_name({"metadata": {"namespace": "default", **metadata}}, api)
        refused = object_meta.metadata_problems(rtype, metadata)
        is_checked = kind not in ("ClusterRole", "Event") or set(metadata) & {
            "labels",
            "annotations",
        }
        if is_checked and kind != "Namespace":
            assert bool(found) == bool(refused), (metadata, found, refused)
        else:
            assert refused or not found, (metadata, found)


@pytest.mark.full
async def test_d9_a_real_server_refuses_the_same_names(tmp_path: Path):
    maps, namespaces = "v1/configmaps", "v1/namespaces"
    async with real_cluster(tmp_path) as cluster:
        for metadata, message in ILLEGAL:
            resource, obj = maps, config_map({"namespace": "default", **metadata})
            if "namespace" in metadata:
                resource, obj = namespaces, {"metadata": {"name": metadata["namespace"]}}
            expected = message.replace("metadata.namespace", "metadata.name")
            with pytest.raises(Invalid, match=re.escape(expected)):
                await cluster.client.create(resource, obj, dry_run=True)
        for metadata in LEGAL:
            obj = config_map({**metadata, "namespace": "default"})
            assert await cluster.client.create(maps, obj, dry_run=True)
