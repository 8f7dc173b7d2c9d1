"""Objects that no API server should answer: what is read of them about an apply ends no round.

Their managedFields, and all other fields, have any JSON in some places (rules D1, D26).
"""

from __future__ import annotations

from typing import Any, Final

import orjson
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fleetbus.errors import KubeError
from fleetbus.kube.applied import facts_of, is_applied, is_unchanged
from fleetbus.kube.trees import read_tree
from fleetbus.owned_objects.force import was_applied
from fleetbus.owned_objects.refusal import UNDECLARED
from fleetbus_distributor.targets.drift_report import describe_drift, find_drift, find_updated
from fleetbus_distributor.targets.field_versions import entries_of, is_outdated, to_version
from support.full import examples
from support.hostile.odd_fields import with_odd_fields

OURS: Final = "fleetbus-distributor"
NAMES: Final[dict[str, Any]] = {"f:name": {}, "f:env": {'k:{"name":"A"}': {".": {}, "f:value": {}}}}
FIELDS: Final[dict[str, Any]] = {
    "f:metadata": {"f:labels": {"f:app": {}}, "f:finalizers": {'v:"a"': {}}},
    "f:spec": {
        "f:replicas": {},
        "f:containers": {'k:{"name":"web"}': NAMES},
        "f:args": {"v:1": {}},
    },
}
WANTED: Final[dict[str, Any]] = {
    "apiVersion": "example.org/v1",
    "kind": "Database",
    "metadata": {"name": "web", "labels": {"app": "web"}, "finalizers": ["a"]},
    "spec": {
        "replicas": 2,
        "containers": [{"name": "web", "env": [{"name": "A", "value": "1"}]}],
        "args": [1],
    },
}
LIVE: Final[dict[str, Any]] = {
    **WANTED,
    "metadata": {
        **WANTED["metadata"],
        "uid": "u",
        "ownerReferences": [{"kind": "Database", "name": "a", "uid": "u"}],
        "managedFields": [
            {
                "manager": manager,
                "operation": operation,
                "apiVersion": f"example.org/{version}",
                "time": "2026-01-02T03:04:05Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": FIELDS,
            }
            for manager, operation, version in (
                (OURS, "Apply", "v1"),
                ("kubectl-edit", "Update", "v1"),
                ("kubectl-edit", "Update", "v1beta1"),
            )
        ],
    },
}


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    try:
        return read_tree(draw(with_odd_fields(LIVE)))
    except ValueError:  # the answer as a whole is refused
        reject()


@pytest.mark.slow
@given(live=objects(), made=objects() | st.just(LIVE))
@settings(max_examples=examples(600))
def test_d1_what_a_cluster_answers_to_an_apply_is_read_whatever_it_is(
    live: dict[str, Any], made: dict[str, Any]
):
    is_applied(WANTED, live, OURS)
    is_unchanged(live, made)
    facts_of(WANTED, live, OURS)
    was_applied(live, OURS)
    for find in (find_drift, find_updated):
        orjson.dumps(describe_drift(find(WANTED, made, live, OURS)))
    is_outdated(KubeError(500, "InternalError", f"x {UNDECLARED}"), live, "example.org/v1")
    to_version(entries_of(live), "example.org/v1")
