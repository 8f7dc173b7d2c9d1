"""OpenAPI below /kube, as `kubectl explain` reads it."""

from __future__ import annotations

import json
import lzma
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

V3 = "/kube/eu1/openapi/v3"
DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """eu1 with pods, and with widgets and their definition."""
    await api.add_cluster(
        "eu1", "core/pods", "apps/deployments", "example.com/widgets", DEFINITIONS
    )
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "description": "The size."}},
    }
    versions = [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]
    definition = {
        "metadata": {"name": "widgets.example.com", "resourceVersion": "1"},
        "spec": {"versions": versions},
    }
    body = msgspec.json.encode(definition)
    await api.add_body("eu1", DEFINITIONS, "widgets.example.com", body, namespace="")
    return api


async def schemas(api: QueryApi, place: str) -> dict[str, Any]:
    answer = await api.get(f"{V3}/{place}")
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["openapi"] == "3.0.0"
    return document["components"]["schemas"]


async def test_the_index_names_a_document_for_each_group_version(fleet: QueryApi):
    paths = (await fleet.get(V3)).json()["paths"]
    places = ["api/v1", "apis/apps/v1", "apis/apiextensions.k8s.io/v1", "apis/example.com/v1"]
    assert sorted(paths) == sorted(places)
    for place, entry in paths.items():
        assert entry == {"serverRelativeURL": f"/openapi/v3/{place}"}
        assert (await fleet.get(f"/kube/eu1{entry['serverRelativeURL']}")).status_code == 200
    assert (await fleet.get(f"{V3}/apis/none/v1")).status_code == 404


async def test_built_in_types_are_those_of_kubernetes(fleet: QueryApi):
    definitions = await schemas(fleet, "api/v1")
    pod = definitions["io.k8s.v1.Pod"]
    assert pod["x-kubernetes-group-version-kind"] == [{"group": "", "version": "v1", "kind": "Pod"}]
    assert pod["description"] == "A group of containers that run together on one node."
    spec = definitions["io.k8s.v1.PodSpec"]
    assert spec["required"] == ["containers"]
    assert spec["properties"]["containers"]["items"] == {
        "$ref": "#/components/schemas/io.k8s.v1.Container"
    }
    assert spec["properties"]["nodeSelector"]["additionalProperties"] == {"type": "string"}
    references = set(
        re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(definitions))
    )
    assert len(references) > 100
    assert references <= definitions.keys()


async def test_custom_types_are_explained_by_their_definition(fleet: QueryApi):
    widget = (await schemas(fleet, "apis/example.com/v1"))["com.example.v1.widgets"]
    assert widget["properties"]["spec"]["description"] == "The size."
    assert set(widget["properties"]) == {"apiVersion", "kind", "metadata", "spec"}
    await fleet.add_body("eu1", DEFINITIONS, "widgets.example.com", b'{"spec":5}', namespace="")
    widget = (await schemas(fleet, "apis/example.com/v1"))["com.example.v1.widgets"]
    assert widget["x-kubernetes-preserve-unknown-fields"], "a definition that cannot be read"


async def test_version_2_has_all_in_one(fleet: QueryApi):
    document = (await fleet.get("/kube/eu1/openapi/v2")).json()
    assert document["swagger"] == "2.0"
    assert {"io.k8s.v1.Pod", "com.example.v1.widgets"} <= document["definitions"].keys()
    media_type = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    answer = await fleet.client.get("/kube/eu1/openapi/v2", headers={"Accept": media_type})
    assert answer.headers["content-type"] == media_type.replace("@", ".")
    for text in (b"#/definitions/io.k8s.v1.PodSpec", b"The size.", b'"kind":"Deployment"'):
        assert text in answer.content, "kubectl before 1.29 reads it: see test_kubectl.py"
    refused = await fleet.client.get("/kube/eu1/openapi/v3", headers={"Accept": media_type})
    assert refused.status_code == 406


@pytest.mark.full
def test_the_table_is_that_of_the_library():
    from reference.kubernetes_types import TABLE, read_types  # noqa: PLC0415 -- takes 1.5 s

    table = json.loads(lzma.decompress(TABLE.read_bytes()))
    assert table == json.loads(json.dumps(read_types())), (
        "run: python tests/run.py reference.kubernetes_types"
    )
