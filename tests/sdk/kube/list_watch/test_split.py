"""A byte stream cut into JSON documents, whatever its chunks: rules W14, W16."""

from __future__ import annotations

import json
import re
import tracemalloc
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus.kube.list_watch import split
from fleetbus.kube.list_watch.split import ItemSplitter, LineSplitter, cut_object

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
    body = json.dumps({"kind": "PodList", "items": items}).encode()
    splitter = ItemSplitter()
    splitter.feed(body[: data.draw(st.integers(0, len(body) - 1))])
    assert not splitter.is_complete


_HEAD = b'{"kind":"PodList","items":['
_BITS = [*'{}[]",:\\ x', '"items":[', '{"a":1}', '{"b":[2]},', '"\\"{"']


def behind_string(document: bytes, at: int) -> int:
    while at < len(document) and document[at : at + 1] != b'"':
        at += 2 if document[at : at + 1] == b"\\" else 1
    return at + 1


def by_byte(document: bytes) -> tuple[list[bytes], bytes, bool]:
    """Items, skeleton and whether it is complete, of a whole list, in the plainest way."""
    items: list[bytes] = []
    head, string, cut, depth, at = b"", b"", 0, 0, 0
    in_items, is_sound, is_complete = False, True, False
    while at < len(document):
        token, begin = document[at : at + 1], at
        at += 1
        if token not in b'"{}[]':
            continue
        if in_items and depth == 2:
            gap, cut = document[cut:begin].strip(), begin
            expected = b"," if items and token == b"{" else b""
            is_sound = is_sound and gap == expected and token in b"{]"
        if token == b'"':
            at = behind_string(document, at)
            string = document[begin:at] if depth == 1 else string
        elif token in b"{[":
            if depth == 1 and token == b"[" and string == b'"items"':
                is_sound = is_sound and not head
                if not head:
                    head, cut, in_items = document[:at], at, True
            depth += 1
            is_complete = False
        else:
            depth -= 1
            if in_items and depth == 2:
                items.append(document[cut:at])
                cut = at
            elif in_items and depth == 1:
                in_items, cut = False, at
            is_complete = depth == 0 and is_sound
    return items, (head + b"]" if head else b"") + document[cut:], is_complete


@given(st.data(), st.lists(st.sampled_from(_BITS), max_size=40), st.booleans())
def test_w16_any_text_in_any_chunks_is_cut_as_byte_by_byte(
    data: st.DataObject, bits: list[str], has_head: bool
):
    body = (_HEAD if has_head else b"") + "".join(bits).encode()
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=8).map(sorted))
    splitter = ItemSplitter()
    found = [item for a, b in pairwise([0, *cuts, len(body)]) for item in splitter.feed(body[a:b])]
    assert (found, splitter.skeleton, splitter.is_complete) == by_byte(body)


def test_w16_of_two_documents_the_second_one_is_not_complete_before_its_end():
    splitter = ItemSplitter()
    splitter.feed(b'{"a":1}{"items":[{"a":1}')
    assert not splitter.is_complete


@pytest.mark.parametrize(
    "text", [b"y", b"\\n", b'\\"', b"{[]}"], ids=["plain", "escapes", "quotes", "brackets"]
)
def test_s7_a_byte_of_an_unfinished_string_is_scanned_once(
    monkeypatch: pytest.MonkeyPatch, text: bytes
):
    scanned = 0

    class Counted:
        def __init__(self, pattern: re.Pattern[bytes]) -> None:
            self.pattern = pattern

        def finditer(self, chunk: bytes, at: int) -> Any:
            nonlocal scanned
            scanned += len(chunk) - at
            return self.pattern.finditer(chunk, at)

        def match(self, chunk: bytes, at: int) -> Any:
            nonlocal scanned
            found = self.pattern.match(chunk, at)
            scanned += found.end() - at if found else len(chunk)
            return found

    for name, pattern in vars(split).copy().items():
        if isinstance(pattern, re.Pattern):
            monkeypatch.setattr(split, name, Counted(cast("re.Pattern[bytes]", pattern)))
    body = _HEAD + b'{"x":"' + text * (20_000 // len(text)) + b'"}]}'
    splitter = ItemSplitter()
    found = [item for chunk in chunks(body, 10) for item in splitter.feed(chunk)]
    assert (len(found), splitter.is_complete) == (1, True)
    assert scanned <= len(body)


@pytest.mark.parametrize("open_", [b'{"x":"', b'{"x":['], ids=["in a string", "between tokens"])
def test_s7_a_byte_more_does_not_copy_what_waits(open_: bytes):
    splitter = ItemSplitter()
    splitter.feed(_HEAD + open_ + b"1" * 2**20)
    splitter.feed(b"1" * 2**16)  # room for some more, so that the next byte makes none
    tracemalloc.start()
    try:
        splitter.feed(b"1")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert splitter.pending > 2**20
    assert most < 2**16


@given(_OBJECTS)
def test_w16_an_object_is_cut_at_its_keys(obj: dict[str, Any]):
    plain = {key: value for key, value in obj.items() if json.dumps(key) == f'"{key}"'}
    fields = cut_object(json.dumps(plain).encode())
    assert {key: json.loads(value) for key, value in fields.items()} == plain


def test_w16_depth_does_not_matter():
    deep = b"[" * 50_000 + b"]" * 50_000
    assert cut_object(b'{"a":' + deep + b',"b":1}') == {"a": deep, "b": b"1"}
