"""Invalid JSON or YAML is refused with Go's error messages, which clients show."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus_emulator.apiserver.encoding.go_syntax import (
    Malformed,
    json_problem,
    parse_json,
    parse_yaml,
)

JSON_PROBLEMS = [
    (b"", "unexpected end of JSON input"),
    (b"{bad", "invalid character 'b' looking for beginning of object key string"),
    (b'{"a" 1}', "invalid character '1' after object key"),
    (b'{"a":1 x', "invalid character 'x' after object key:value pair"),
    (b"[1 2]", "invalid character '2' after array element"),
    (b"[1,]", "invalid character ']' looking for beginning of value"),
    (b'{"a":1,}', "invalid character '}' looking for beginning of object key string"),
    (b"tru", "unexpected end of JSON input"),
    (b"trux", "invalid character 'x' in literal true (expecting 'e')"),
    (b'"a\nb"', r"invalid character '\n' in string literal"),
    (rb'"\x"', "invalid character 'x' in string escape code"),
    (rb'"\u12g4"', r"invalid character 'g' in \u hexadecimal character escape"),
    (b"-x", "invalid character 'x' in numeric literal"),
    (b"1.x", "invalid character 'x' after decimal point in numeric literal"),
    (b"1ex", "invalid character 'x' in exponent of numeric literal"),
    (b"01", "invalid character '1' after top-level value"),
    (b"{} {}", "invalid character '{' after top-level value"),
    (b"{'a': 1}", r"invalid character '\'' looking for beginning of object key string"),
    (b'{"a":', "unexpected end of JSON input"),
    (b'"\xff"', "invalid UTF-8 in string literal"),
]


@pytest.mark.parametrize(("body", "why"), JSON_PROBLEMS)
def test_the_first_mistake_is_reported_as_go_tells_it(body: bytes, why: str):
    assert json_problem(body) == why
    with pytest.raises(Malformed, match=r"."):
        parse_json(body)


def test_a_document_may_be_nested_as_deep_as_it_likes():
    assert json_problem(b"[" * 100_000) == "unexpected end of JSON input"


@given(st.binary(max_size=30) | st.text('{}[]",:0truefalsn1.-e \\', max_size=20).map(str.encode))
def test_whatever_orjson_refuses_gets_a_reason(body: bytes):
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        assert json_problem(body).startswith(("invalid", "unexpected"))


def test_yaml_becomes_json():
    read = parse_yaml(b"a: 2020-01-01\n1: &x [yes, .5]\nb: *x")
    assert read == {"a": "2020-01-01", "1": [True, 0.5], "b": [True, 0.5]}
    assert read["1"] is not read["b"]


@pytest.mark.parametrize("body", [b"a: b: c", b"a: [1,", b"a: !!binary aGk=", b"&a [*a]", b"\xff"])
def test_what_is_no_yaml_or_no_json_is_malformed(body: bytes):
    with pytest.raises(Malformed, match="yaml: "):
        parse_yaml(body)
