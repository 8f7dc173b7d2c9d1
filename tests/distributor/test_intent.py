from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.intent import Inventory, Mark, Owned
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.targets.converge import deletion_order, stage_of
from support.rows import each_row

A, B = (ObjectRef("v1", "ConfigMap", "default", name) for name in "ab")

REFS = st.builds(
    ObjectRef,
    st.sampled_from(["v1", "apps/v1"]),
    st.sampled_from(["A", "B"]),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["n", "m"]),
)
INVENTORIES = st.dictionaries(
    st.sampled_from(["t1", "t2", "t3"]),
    st.lists(
        st.builds(
            Owned,
            REFS,
            st.sampled_from(["", "u1"]),
            st.sampled_from(Mark),
            st.sampled_from(["", "12ab", "12ab:Complete"]),
        ),
        min_size=1,
        max_size=4,
    ),
    max_size=3,
)


@given(drawn=INVENTORIES)
def test_d2_what_is_written_is_what_is_read(drawn: dict[str, list[Owned]]):
    inventory = {name: {entry.ref.key: entry for entry in owned} for name, owned in drawn.items()}
    assert intent.read({"intent": intent.write(inventory)}) == inventory


def test_d2_an_object_is_listed_once_whatever_the_number_of_clusters():
    refs = [ObjectRef("v1", "ConfigMap", "default", f"object-{n}") for n in range(100)]
    entries = {ref.key: Owned(ref) for ref in refs}
    stored = intent.write({f"cluster-{n}": entries for n in range(1000)})
    assert len(stored["objects"]) == 100
    assert stored["clusters"][0] == {"name": "cluster-0"}


def test_d2_an_intent_that_cannot_be_stored_is_refused_before_anything_is_applied(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(intent, "MAX_PARTS", 4)
    refs = [ObjectRef("v1", "ConfigMap", "default", f"object-{n}") for n in range(100)]
    entries = {ref.key: Owned(ref, "0123456789-0123456789-0123456789-012") for ref in refs}
    with pytest.raises(IntentError, match="100 objects on 1000 clusters are more than"):
        intent.write({f"cluster-{n}": entries for n in range(1000)})


def test_d2_there_must_be_room_for_the_uids_before_anything_is_applied(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(intent, "MAX_PARTS", 4)
    refs = [ObjectRef("v1", "ConfigMap", "default", f"object-{n}") for n in range(100)]
    inventory = {f"cluster-{n}": {ref.key: Owned(ref) for ref in refs} for n in range(300)}
    intent.write(inventory)
    with pytest.raises(IntentError, match="100 objects on 300 clusters are more than"):
        intent.check_room(inventory)


DAMAGED: list[Any] = [
    "text",
    {"clusters": [{}]},
    {"clusters": [{"name": "t1", "objects": [7]}]},
    {"objects": [{"kind": "A"}], "clusters": []},
    {"objects": [], "clusters": [{"name": "t1", "objects": [], "uids": ["x"]}]},
    {"objects": [None], "clusters": []},
    {"objects": [], "clusters": [{"name": "t1", "generation": "x", "labels": "y"}]},
]


@each_row("damaged", DAMAGED)
def test_a_damaged_intent_is_an_error_not_an_empty_one(damaged: Any):
    def read() -> None:
        intent.read({"intent": damaged})
        intent.read_bases({"intent": damaged})

    with pytest.raises(IntentError):
        read()


def test_d8_what_goes_because_it_was_asked_for_is_on_record_before_it_goes():
    recorded: Inventory = {"t1": {A.key: Owned(A, "u")}}
    for mark in Mark:
        marked: Inventory = {"t1": {A.key: Owned(A, mark=mark)}}
        is_asked = mark in (Mark.DROPPED, Mark.CONFIRMED)
        assert intent.covers(recorded, marked) is not is_asked
        assert intent.covers(marked, recorded) is not is_asked
    assert not intent.covers(recorded, {"t1": {A.key: Owned(A), B.key: Owned(B)}})


def test_d8_the_basis_of_a_cluster_stands_beside_its_objects():
    bases = {"t1": intent.Basis(7, intent.digest_of({"tier": "prod"}))}
    stored = intent.write({"t1": {A.key: Owned(A)}, "t2": {A.key: Owned(A)}}, bases)
    assert intent.read_bases({"intent": stored}) == bases
    assert intent.digest_of({"tier": "prd"}) != bases["t1"].labels


def test_d12_order_of_kinds():
    kinds = ["Widget", "Deployment", "ConfigMap", "Role", "Namespace", "CustomResourceDefinition"]
    owned = [Owned(ObjectRef("v1", kind, "default", "x")) for kind in kinds]
    assert sorted(kinds, key=stage_of) == kinds[::-1]
    assert [entry.kind for entry in deletion_order(owned)] == kinds
