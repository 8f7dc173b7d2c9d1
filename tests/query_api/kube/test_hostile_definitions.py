"""A definition of a member may be anything; the documents for everybody are made all the same."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from fleetbus_query_api.catalog.kinds import Kind
from fleetbus_query_api.kube.openapi.documents import read_definitions
from fleetbus_query_api.kube.openapi.protobuf import encode_document
from fleetbus_query_api.kube.openapi.schemas import V2_PREFIX, V3_PREFIX, Schemas
from fleetbus_query_api.kube.openapi.validity import MAX_VALUES, is_schema
from support.calls import counted_calls
from support.rows import each_row

_NAMES = (
    "type", "properties", "items", "additionalProperties", "required", "description", "format",
    "$ref", "x-kubernetes-validations", "default", "allOf", "not", "enum", "nullable",
)  # fmt: skip

KIND = Kind(
    group="example.com",
    version="v1",
    plural="widgets",
    kind="Widget",
    namespaced=True,
    singular="widget",
    short_names=(),
    categories=(),
)


def nested(levels: int, *, within: str) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {within: {"a": schema} if within == "properties" else schema}
    return schema


def random_value(random_: random.Random, depth: int) -> Any:
    kind = random_.randrange(9 if depth else 5)
    if kind >= 6:
        return {random_.choice(_NAMES): random_value(random_, depth - 1) for _ in range(3)}
    if kind == 5:
        return [random_value(random_, depth - 1) for _ in range(2)]
    return (None, True, 7, "object", "")[kind]


def encode(schema: Any) -> bytes:
    """All documents that have a schema."""
    documents = b""
    for prefix in (V2_PREFIX, V3_PREFIX):
        schemas = Schemas(prefix)
        schemas.add_custom(KIND, schema if is_schema(schema) else None)
        head = {"swagger": "2.0", "info": {"title": "t", "version": "1"}}
        document = {**head, "definitions": schemas.found}
        documents += encode_document(document) + msgspec.json.encode(document)
    return documents


@each_row("within", ["properties", "items", "additionalProperties", "not", "default", "x-a"])
@each_row("levels", [1, 50, 100, 101, 450, 5_000])
def test_a_schema_of_any_depth_is_encoded_or_left_out(within: str, levels: int):
    assert encode(nested(levels, within=within))
    assert is_schema(nested(levels, within=within)) is (levels <= 100)


def test_any_value_in_place_of_a_schema_is_encoded_or_left_out():
    random_, valid = random.Random(26), 0
    for _ in range(100):
        schema = {"type": "object", "properties": {"spec": random_value(random_, 4)}}
        valid += is_schema(schema)
        assert encode(schema)
    assert 0 < valid < 100


def described(schema: Any) -> bool:
    """Whether the document of a definition has the properties of its schema."""
    version = {"name": "v1", "schema": {"openAPIV3Schema": schema}}
    body = msgspec.json.encode({"spec": {"versions": [version]}})
    (definition,) = read_definitions({"widgets.example.com": body}).values()
    return definition.schema_of("v1") is not None


@each_row(
    "schema",
    [
        {"properties": {str(number): {} for number in range(MAX_VALUES + 1)}},
        {"allOf": [{}] * 350_000},
        {"enum": [1] * 500_000},
        {"x-a": {str(number): [] for number in range(MAX_VALUES + 1)}},
    ],
)
def test_a8_a_schema_that_is_too_large_is_left_out_after_little_work(schema: dict[str, Any]):
    """One of 1 MB stalled the query API for 1.5 s with each document that was asked for."""
    with counted_calls() as calls:
        assert not is_schema(schema)
    assert calls.count < 3 * MAX_VALUES
    assert not described(schema)
    assert described({"properties": {str(number): {} for number in range(1_000)}})


@pytest.mark.slow
def test_a8_the_schemas_of_a_document_have_a_number_of_values_together():
    fields = {str(number): {"type": "string"} for number in range(MAX_VALUES // 2 - 10)}
    version = {"name": "v1", "schema": {"openAPIV3Schema": {"properties": fields}}}
    body = msgspec.json.encode({"spec": {"versions": [version]}})
    definitions = read_definitions({f"w{number}.example.com": body for number in range(15)})
    has_schema = [each.schema_of("v1") is not None for each in definitions.values()]
    assert has_schema == [True] * 10 + [False] * 5
