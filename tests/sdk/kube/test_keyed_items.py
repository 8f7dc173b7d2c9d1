"""Items of lists by the keys of managedFields: as a comparison of each with each, but in no time.

An object of a member, or of a MultiClusterResource, must stall nobody (rules D3, D26).
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbus.kube.applied import is_applied
from fleetbus.kube.keyed_items import FieldsByKey, ItemsByKey, read_key
from support.full import examples
from support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

Tree = dict[str, Any]
MEMBERS = st.dictionaries(
    st.sampled_from(["name", "port", "protocol"]),
    st.sampled_from(["a", "b", 1, 2, True, None]),
    max_size=3,
)
KEYS = st.dictionaries(
    st.sampled_from(["name", "port", "protocol"]),
    st.sampled_from(["a", "b", 1, 2, True]),
    min_size=1,
    max_size=2,
)


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and first == second


@given(items=st.lists(MEMBERS | st.none(), max_size=6), key=KEYS, data=st.data())
@settings(max_examples=examples(150))
def test_d3_places_are_those_that_each_comparison_finds(
    items: list[Tree | None], key: Tree, data: st.DataObject
):
    required = data.draw(st.sets(st.sampled_from(sorted(key))))
    expected = [
        at
        for at, item in enumerate(items)
        if item is not None
        and all(name in item for name in required)
        and all(name not in item or _same(item[name], value) for name, value in key.items())
    ]
    assert sorted(ItemsByKey(items).places(key, required)) == expected


@given(item=MEMBERS, keys=st.lists(KEYS, max_size=4, unique_by=json.dumps))
@settings(max_examples=examples(150))
def test_d26_fields_of_an_item_are_those_that_each_comparison_finds(item: Tree, keys: list[Tree]):
    fields: Tree = {f"k:{json.dumps(key)}": {"at": at} for at, key in enumerate(keys)}
    expected = {
        at
        for at, key in enumerate(keys)
        if all(name in item and _same(item[name], value) for name, value in key.items())
    }
    # Of two spellings of one key, which no server writes, the last counts.
    assert {field["at"] for field in FieldsByKey(fields).of(item)} == expected


@each_row("text", ["k:", "k:{", "k:[]", "k:7", 'k:{"a":[1]}', 'k:{"a":null}', "k:" + "[" * 100_000])
def test_d3_what_is_no_key_finds_nothing(text: str):
    assert read_key(text) == {}
    assert FieldsByKey({text: {}}).of({"a": None}) == []


def _object(spec: Tree, fields: Tree | None = None) -> Tree:
    entry = {"manager": "ours", "operation": "Apply", "apiVersion": "v1", "fieldsV1": fields or {}}
    metadata: Tree = {"name": "x", "uid": "u", "labels": {"a": "b"}}
    if fields:
        metadata["managedFields"] = [entry]
    return {"apiVersion": "v1", "kind": "X", "metadata": metadata, "spec": spec}


def _keyed(count: int, copies: int = 1) -> tuple[Tree, Tree]:
    """An object with a list of named items; `copies` of each on the cluster."""
    items = [{"name": f"n{at}", "v": 1} for at in range(count)]
    parts: Tree = {f'k:{{"name":"n{at}"}}': {"f:name": {}, "f:v": {}} for at in range(count)}
    fields: Tree = {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:items": parts}}
    return _object({"items": items}), _object({"items": items * copies}, fields)


def _copies(count: int) -> tuple[Tree, Tree]:
    return _keyed(count, copies=9)


def _odd_keys(count: int) -> tuple[Tree, Tree]:
    desired, live = _keyed(count)
    parts: Tree = {f'k:{{"m{at}":1}}': {} for at in range(count)}
    live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"] = {"f:items": parts}
    return desired, live


def _set(count: int) -> tuple[Tree, Tree]:
    values = [f"v{at}" for at in range(count)]
    parts: Tree = {f'v:"v{at}"': {} for at in range(count)}
    fields: Tree = {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:items": parts}}
    return _object({"items": values}), _object({"items": values}, fields)


@each_row(("make", "is_same"), [(_keyed, True), (_copies, False), (_odd_keys, False), (_set, True)])
def test_d3_a_list_of_thousands_is_compared_at_once(
    make: Callable[[int], tuple[Tree, Tree]], is_same: bool
):
    """It took minutes, in which the process did nothing else: the square of the items."""
    desired, live = make(5000)
    began = time.process_time()
    assert is_applied(desired, live, "ours") is is_same
    assert time.process_time() - began < 3


ODD_ENTRIES: list[Any] = [7, "x", [7], ["x"], [None], [{"manager": "ours", "operation": "Apply"}]]


@each_row("entries", ODD_ENTRIES)
def test_d3_odd_managed_fields_say_nothing(entries: Any):
    desired, live = _keyed(2)
    live["metadata"]["managedFields"] = entries
    assert not is_applied(desired, live, "ours")
    live["metadata"]["managedFields"] = [
        {"manager": "ours", "operation": "Apply", "apiVersion": "v1", "fieldsV1": entries}
    ]
    assert not is_applied(desired, live, "ours")
