"""The columns and cells of Kubernetes' own resources are those of kube-apiserver 1.34.1.

`tables-1.34.1.jsonl` has objects, and what its printers answered; `record.py` writes it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from fleetbus_query_api.answers.catalog import KnownResource
from fleetbus_query_api.tables.builtin import BUILTIN
from fleetbus_query_api.tables.columns import columns_of

Tree = dict[str, Any]

RECORDED: Final = [
    json.loads(line)
    for line in (Path(__file__).parent / "tables-1.34.1.jsonl").read_text("utf-8").splitlines()
]
COLUMNS: Final[dict[str, list[list[Any]]]] = {
    line["resource"]: line["columns"] for line in RECORDED if "columns" in line
}
ROWS: Final[list[Tree]] = [line for line in RECORDED if "cells" in line]
NOT_RECORDED: Final = {
    # a server of its own inside kube-apiserver, and alpha resources
    "apiregistration.k8s.io/apiservices",
    "admissionregistration.k8s.io/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/mutatingadmissionpolicybindings",
    "certificates.k8s.io/clustertrustbundles",
    "certificates.k8s.io/podcertificaterequests",
    "coordination.k8s.io/leasecandidates",
    "core/componentstatuses",
}


def known(key: str) -> KnownResource:
    group, _, plural = key.partition("/")
    return KnownResource(group, plural, "", namespaced=True, versions=("v1",))


def without_ages(cells: list[Any]) -> list[Any]:
    """Objects are of 2001: years go by."""
    return [re.sub(r"\b\d+y\b", "AGE", c) if isinstance(c, str) else c for c in cells]


@pytest.mark.parametrize("resource", COLUMNS)
def test_the_columns_are_those_of_a_real_server(resource: str):
    found = columns_of(known(resource))

    assert [[c.name, c.type, c.format, c.priority] for c in found] == COLUMNS[resource]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['resource']}-{ROWS.index(row)}")
def test_the_cells_are_those_of_a_real_server(row: Tree):
    columns = columns_of(known(row["resource"]))

    cells = [column.cell(row["object"]) for column in columns]

    # An address has one cell more than columns: clients show as many as there are columns.
    assert without_ages(cells) == without_ages(row["cells"])[: len(columns)]


def test_every_column_is_compared_with_a_real_server():
    assert set(BUILTIN) - set(COLUMNS) == NOT_RECORDED
