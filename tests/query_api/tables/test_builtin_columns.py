"""The columns and cells of Kubernetes' own resources are those of kube-apiserver 1.37.2.

`record` has written what its printers answered for the objects of `corpus`.
"""

from __future__ import annotations

import shutil
from typing import Any, Final

import pytest

from fleetbus_query_api.catalog.catalog import KnownResource
from fleetbus_query_api.tables.builtin import BUILTIN
from fleetbus_query_api.tables.column import Column
from fleetbus_query_api.tables.columns import columns_in_list, columns_of
from query_api.tables.corpus import Tree, pods, samples, variants
from query_api.tables.record import build_printer, recordings
from query_api.tables.recorded import lines, without_ages
from support.rows import each_row

SAMPLES: Final = samples()
RECORDED: Final = lines()
COLUMNS: Final[dict[str, list[list[Any]]]] = {
    line["resource"]: line["columns"] for line in RECORDED if "columns" in line
}
ROWS: Final[dict[str, list[Tree]]] = {
    resource: [line for line in RECORDED if line.get("resource") == resource and "cells" in line]
    for resource in COLUMNS
}
SORTED: Final = "flowcontrol.apiserver.k8s.io/flowschemas"
"""A server sorts a list of them by their precedence; ours is in the order of names, in pages."""


def columns(resource: str) -> list[Column]:
    group, _, plural = resource.partition("/")
    known = KnownResource(group, plural, "", namespaced=True, versions=("v1",))
    return list(columns_of(known))


def cells(shown_columns: list[Column], tree: Tree) -> list[Any]:
    return without_ages([column.cell(tree) for column in shown_columns])


def expected(row: list[Any], shown_columns: list[Column]) -> list[Any]:
    """An address has one cell more than columns: clients show as many as there are columns."""
    return without_ages(row)[: len(shown_columns)]


@each_row("resource", COLUMNS)
def test_the_columns_are_those_of_a_real_server(resource: str):
    attributes = [[c.name, c.type, c.format, c.priority] for c in columns(resource)]

    assert attributes == COLUMNS[resource]


@each_row("resource", COLUMNS)
def test_the_cells_are_those_of_a_real_server(resource: str):
    all_columns, objects = columns(resource), SAMPLES[resource]
    in_list = list(columns_in_list(all_columns, (("a", each) for each in objects))("a"))

    for sample, row in zip(objects, ROWS[resource], strict=True):
        assert cells(all_columns, sample) == expected(row["cells"], all_columns), row["name"]
        if resource == SORTED:
            continue
        listed = row.get("inList", row["cells"])
        assert cells(in_list, sample) == expected(listed, all_columns), row["name"]


@each_row("resource", COLUMNS)
def test_the_cells_of_changed_objects_are_those_of_a_real_server(resource: str):
    all_columns, different = columns(resource), list[str]()
    for sample, row in zip(SAMPLES[resource], ROWS[resource], strict=True):
        unsent = set(row["unsent"])
        for label, changed in variants(sample):
            if label in unsent:
                continue
            changes = {int(i): cell for i, cell in row["changes"].get(label, {}).items()}
            real = [changes.get(i, cell) for i, cell in enumerate(row["cells"])]
            actual = cells(all_columns, changed)
            if actual != expected(real, all_columns):
                different.append(
                    f"{row['name']}: {label}: {actual} != {expected(real, all_columns)}"
                )

    assert not different, "\n".join(different[:20])


def test_the_cells_of_pods_in_every_state_are_those_of_a_real_server():
    pod_columns = columns("core/pods")
    recorded = next(line["pods"] for line in RECORDED if "pods" in line)

    for pod, row in zip(pods(), recorded, strict=True):
        assert cells(pod_columns, pod)[1:] == row, pod


def test_every_column_is_compared_with_a_real_server():
    assert set(BUILTIN) <= set(COLUMNS)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("go") is None, reason="install Go 1.26 or newer")
def test_the_recordings_are_what_the_printers_answer():
    assert list(recordings(build_printer())) == RECORDED
