"""Objects that no API server should answer: every reader of them answers, or says it cannot.

Samples of every kind have any JSON in some places, and are read as the query API reads what members
send: for tables, relations, history, outliers and fields (rules A1, A9).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbus.kube.field_paths import FieldPath
from fleetbus.kube.trees import read_tree
from fleetbus.ownership import OWNER_ANNOTATION, OWNER_UID_LABEL
from fleetbus.snapshot import Entry
from fleetbus_proto.events import PrinterColumn
from fleetbus_query_api.catalog.catalog import KnownResource
from fleetbus_query_api.fields.bodies import UnreadableBody
from fleetbus_query_api.fields.extract import field_reader
from fleetbus_query_api.fields.outliers import PAGE_BYTES, FormBudget, Outlier, add_object
from fleetbus_query_api.fields.projection import project
from fleetbus_query_api.fields.variants import read_variant
from fleetbus_query_api.history.distributed import read_mark, read_ownership
from fleetbus_query_api.past.differences import compare_bodies
from fleetbus_query_api.past.states import created_at
from fleetbus_query_api.relations.owners import references_of
from fleetbus_query_api.tables.column import CellCosts
from fleetbus_query_api.tables.columns import columns_in_list, columns_of
from fleetbus_query_api.tables.custom import custom_columns
from query_api.tables.corpus import samples
from support.full import examples
from support.hostile.odd_fields import with_odd_fields

METADATA: Final[dict[str, Any]] = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "u"}],
    "labels": {OWNER_UID_LABEL: "u"},
    "annotations": {
        OWNER_ANNOTATION: '{"apiVersion":"fleetbus.dev/v1","kind":"MultiClusterResource"}'
    },
    "managedFields": [
        {"manager": "m", "operation": "Update", "time": "2026-01-02T03:04:05Z", "fieldsV1": {}}
    ],
}
SAMPLES: Final[list[tuple[str, dict[str, Any]]]] = [
    (resource, {**tree, "metadata": {**tree.get("metadata", {}), **METADATA}})
    for resource, trees in samples().items()
    for tree in trees
]
PATHS: Final = [
    FieldPath.parse(text)
    for text in ("status.phase", "spec.containers[*].image", "metadata.labels", "status")
]
NO_NAMES: Final[dict[str, Any]] = {
    "core/pods": {"initContainerStatuses": [{"name": []}]},
    "certificates.k8s.io/certificatesigningrequests": {"conditions": [{"type": []}]},
}
COLUMNS: Final = custom_columns(
    tuple(
        PrinterColumn(name=f"{kind}{path}", type=kind, json_path=path)
        for kind in ("string", "integer", "number", "boolean", "date")
        for path in (
            ".metadata.creationTimestamp",
            ".spec.replicas",
            ".status.conditions[*].status",
        )
    )
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """The resource of a sample, and two objects that are near to it."""
    resource, sample = draw(st.sampled_from(SAMPLES))
    return resource, [draw(with_odd_fields(sample)) for _ in range(2)]


def known(resource: str) -> KnownResource:
    group, _, plural = resource.partition("/")
    return KnownResource(group, plural, "", namespaced=True, versions=("v1",))


def entry(body: bytes) -> Entry:
    return Entry("eu1", "prod", "web", "u", "1", body, 1, "", 1)


@given(sample=bodies())
@settings(max_examples=examples(300))
def test_a_table_has_a_row_for_any_object(sample: tuple[str, list[bytes]]):
    resource, changed = sample
    trees = list[dict[str, Any]]()
    for body in changed:
        try:
            tree = read_tree(body)
        except ValueError:
            continue
        trees.append(tree)
    for column_set in (columns_of(known(resource)), COLUMNS):
        columns = columns_in_list(column_set, (("eu1", tree) for tree in trees))("eu1")
        for tree in trees:
            msgspec.json.encode(CellCosts().cells(columns, tree))


@pytest.mark.parametrize(("resource", "status"), NO_NAMES.items())
def test_a_cell_of_an_object_that_no_server_would_store_is_unknown(resource: str, status: Any):
    """It ended the tables of all clusters."""
    tree = {"metadata": {"name": "odd"}, "status": status}
    cells = CellCosts().cells(columns_of(known(resource)), tree)
    assert cells[0] == "odd"
    assert "<unknown>" in cells


@given(sample=bodies())
@settings(max_examples=examples(300))
def test_a9_the_past_of_any_object_is_described(sample: tuple[str, list[bytes]]):
    before, after = sample[1]
    msgspec.json.encode(compare_bodies(before, after).render())
    for body in sample[1]:
        created_at(body)
        read_mark(body)
        msgspec.json.encode(read_ownership(body).writer)


@given(sample=bodies())
@settings(max_examples=examples(300))
def test_the_owners_and_variants_of_any_object_are_found(sample: tuple[str, list[bytes]]):
    resource, changed = sample
    outlier = Outlier(b"prod/web")
    for body in changed:
        msgspec.json.encode(
            [reference.name for reference in references_of(entry(body), known(resource), 0)]
        )
        add_object(outlier, resource, entry(body), FormBudget(PAGE_BYTES))
        project(entry(body), PATHS)
        for read in (*map(field_reader, PATHS), partial(read_variant, resource)):
            try:
                read(body)
            except UnreadableBody:
                continue
    msgspec.json.encode(outlier.differences())
