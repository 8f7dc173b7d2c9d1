"""Any text of a client, and any object, has an answer: never an exception of ours (rule A8)."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest

from fleetbus.errors import FleetbusError
from fleetbus.kube.field_paths import MAX_VALUES, FieldPath
from fleetbus.kube.selectors import FieldSelector, LabelSelector
from fleetbus.snapshot import Entry
from fleetbus_query_api.fields.bodies import UnreadableBody, matches_entry
from fleetbus_query_api.fields.extract import field_reader
from support.rows import each_row

_LETTERS = "ab.[]*'\"\\{}=!,() \t\n\x00\x01\x7f01\u00e9\u2028"
_VALUES: tuple[Any, ...] = (None, True, 3, -0.5, "x", "", [], {}, [[]], {"a": [1, {"b": None}]})


def _random_path(random_: random.Random) -> str:
    return "".join(random_.choice(_LETTERS) for _ in range(random_.randrange(1, 12)))


def _random_tree(random_: random.Random, depth: int) -> Any:
    if not depth or random_.random() < 0.3:
        return random_.choice(_VALUES)
    if random_.random() < 0.4:
        return [_random_tree(random_, depth - 1) for _ in range(random_.randrange(3))]
    names = ("a", "b", 'a"b', "a\\b", "\x01", "metadata", "labels")
    return {random_.choice(names): _random_tree(random_, depth - 1) for _ in range(3)}


@each_row("name", ['a"b', "a\\b", "a\x01b", "\x00", "a\nb", "\u2028", "\x7f"])
def test_a_key_of_any_characters_is_read(name: str):
    body = json.dumps({"spec": {name: 1}}).encode()

    assert field_reader(FieldPath(("spec", name)))(body) == 1


def test_every_path_reads_every_object_as_its_tree_does_or_is_refused():
    random_ = random.Random(26)
    for _ in range(3_000):
        tree: dict[str, Any] = {"metadata": {}}
        tree |= dict.fromkeys("ab", _random_tree(random_, 3))
        body = json.dumps(tree).encode()
        try:
            path = FieldPath.parse(_random_path(random_))
        except FleetbusError:
            continue
        assert field_reader(path)(body) == path.read(tree)


def test_every_selector_decides_about_every_object_or_says_that_it_cannot():
    random_ = random.Random(27)
    labels = LabelSelector.parse("a=1,b!=2")
    for _ in range(1_000):
        tree: Any = {"metadata": _random_tree(random_, 2), "a": _random_tree(random_, 3)}
        entry = Entry("c", "n", "x", "", "", json.dumps(tree).encode(), 1, "", 0)
        try:
            fields = FieldSelector.parse(f"{_random_path(random_)}=x")
        except (FleetbusError, ValueError):
            fields = FieldSelector.parse("a[*].b=1")
        with contextlib.suppress(UnreadableBody):
            assert matches_entry(entry, labels, fields) in (True, False)


@each_row("path", ["a[*]", "a[*].b", "a[*][*]", "['a'][*]['\\']"])
def test_a8_a_field_of_too_many_values_is_undecided(path: str):
    body = json.dumps({"a": [[]] * (MAX_VALUES + 1)}).encode()

    with pytest.raises(UnreadableBody):
        field_reader(FieldPath.parse(path))(body)
