"""A byte stream cut into JSON documents, whatever its chunks: rules W14, W16."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleetbus.kube.split import ItemSplitter, LineSplitter, cut_object

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(st.text(max_size=6), _JSON, max_size=5)


def chunks(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b""))), st.integers(1, 9))
def test_lines_do_not_depend_on_chunks(lines: list[bytes], size: int):
    data = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter()
    found = [line for chunk in chunks(data, size) for line in splitter.feed(chunk)]
    assert found == [line for line in lines if line]


def test_w14_a_line_over_the_limit_is_dropped_and_the_next_one_is_read():
    splitter = LineSplitter(limit=10)
    found: list[bytes] = []
    for chunk in (b"x" * 8, b"y" * 8, b"z" * 8 + b"\nok\n", b"tail"):
        found += splitter.feed(chunk)
    assert found == [b"ok"]
    assert splitter.too_long == 1
    assert splitter.feed(b"\n") == [b"tail"]


@given(st.lists(_OBJECTS, max_size=5), st.integers(1, 40), st.booleans())
def test_w2_items_do_not_depend_on_chunks(items: list[Any], size: int, is_compact: bool):
    document: dict[str, Any] = {
        "kind": "PodList",
        "metadata": {"resourceVersion": "5", "items": [1]},
        "items": items,
        "tail": [{"items": [{}]}],
    }
    data = json.dumps(document, separators=(",", ":") if is_compact else None).encode()
    splitter = ItemSplitter()
    found = [item for chunk in chunks(data, size) for item in splitter.feed(chunk)]
    assert [json.loads(item) for item in found] == items
    assert splitter.is_complete
    assert json.loads(splitter.head + b"]}")["metadata"] == document["metadata"]


@given(st.lists(_OBJECTS, min_size=1, max_size=3), st.data())
def test_w8_a_list_that_is_cut_is_never_complete(items: list[Any], data: st.DataObject):
    whole = json.dumps({"kind": "PodList", "items": items}).encode()
    splitter = ItemSplitter()
    splitter.feed(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert not splitter.is_complete


@given(_OBJECTS)
def test_w16_an_object_is_cut_at_its_keys(obj: dict[str, Any]):
    plain = {key: value for key, value in obj.items() if json.dumps(key) == f'"{key}"'}
    found = cut_object(json.dumps(plain).encode())
    assert {key: json.loads(value) for key, value in found.items()} == plain


def test_w16_depth_does_not_matter():
    deep = b"[" * 50_000 + b"]" * 50_000
    assert cut_object(b'{"a":' + deep + b',"b":1}') == {"a": deep, "b": b"1"}
