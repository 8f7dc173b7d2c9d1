"""Manifests read as kubectl 1.33 reads them: each document was applied with it."""

from __future__ import annotations

import orjson
import pytest

from fleetbus.kube.manifest_yaml import read_documents
from support.rows import each_row


@each_row(
    ("text", "expected"),
    [
        ("{yes: 1, n: 2, 1: 3, 0: 4, 1.5: 5}", {"true": 1, "false": 2, "1": 3, "0": 4, "1.5": 5}),
        ("[y, No, on, 'off', yEs]", [True, False, True, "off", "yEs"]),
        ("[2026-01-02, 2026-01-02T15:04:05Z, 12:30, 1:2:3]", None),
        ("[007, 0o17, 0x1f, 0b11, 1_000, 08, +5, -0]", [7, 15, 31, 3, 1000, 8, 5, 0]),
        ("[1e3, 1.5e-1, .5, 5., 1.0, 1e, e3]", [1000, 0.15, 0.5, 5, 1, "1e", "e3"]),
        ("[18446744073709551615, 18446744073709551616]", [2**64 - 1, 2.0**64]),
        ("[~, null, '', !!str 5, !!int '5']", [None, None, "", "5", 5]),
        ("[!!null '', !!null ~, !!null null]", [None, None, None]),
        ("[!!bool 'yes', !!float 0x1F, !!float '5', !!float 1e3]", [True, 31, 5, 1000]),
        ("[!!binary aGk=, !x 1, 1e400, -1e999, =, <<]", ["hi", "1", "1e400", "-1e999", "=", "<<"]),
        ("|\n  a: b\n   c\n", "a: b\n c\n"),
        ("{a: &x {yes: 1}, b: *x, c: {<<: *x, d: 2}}", ...),
    ],
)
def test_scalars_and_keys_are_those_of_kubectl(text: str, expected: object):
    (document,) = read_documents(text)

    if expected is None:
        expected = text[1:-1].split(", ")  # each of them as it stands there
    if expected is ...:
        inner = {"true": 1}
        expected = {"a": inner, "b": inner, "c": {"true": 1, "d": 2}}
    assert document == expected
    assert orjson.loads(orjson.dumps(document)) == document
    assert repr(document) == repr(expected)  # True is 1, but for this


@each_row(
    ("tag", "wrong"),
    [
        ("null", ["x", "5", "1.5", "yes", "'yes'", "2024-01-01", "YQ==", ".inf"]),
        ("bool", ["x", "''", "~", "5", "1.5", "'5'", "null", "1e3"]),
        ("int", ["x", "''", "~", "1.5", "yes", "null", "2024-01-01", ".inf"]),
        ("float", ["x", "''", "~", "yes", "null", "2024-01-01"]),
    ],
)
def test_a_tag_that_the_text_contradicts_is_a_value_error(tag: str, wrong: list[str]):
    for text in wrong:
        with pytest.raises(ValueError, match="YAML"):
            read_documents(f"!!{tag} {text}")


def test_empty_documents_are_left_out():
    assert read_documents("---\n---\na: 1\n---\n# nothing\n---\n{}\n") == [{"a": 1}, {}]


@each_row(
    "text",
    ["a: [", "{[1]: 2}", "{~: 1}", "[.inf]", "[!!binary /w==]", "[!!set {a}]", "&a [*a]", "!x [1]"],
)
def test_what_json_cannot_have_is_a_value_error(text: str):
    with pytest.raises(ValueError, match=r"YAML|JSON"):
        read_documents(text)
