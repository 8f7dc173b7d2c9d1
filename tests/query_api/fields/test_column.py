"""A column against a plain list."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from fleetbus.kube.field_paths import FieldPath, Special
from fleetbus_query_api.fields.bodies import UnreadableBody
from fleetbus_query_api.fields.column import UNDECIDED, FieldColumn
from fleetbus_query_api.fields.extract import field_reader
from fleetbus_query_api.fields.order import dump_ranks, load_ranks, parse_sort, rank_of
from fleetbus_query_api.requests.paging import FieldPosition, read_token
from fleetbus_query_api.responses.problem import BadRequestProblem
from support.rows import each_row

VALUES: tuple[Any, ...] = (
    *("a", "b", "", None, 1, 1.0, True, False, 0, ("a", 1), ("a", True), ()),
    *(Special.COMPOSITE, UNDECIDED),
)


@each_row("seed", range(5))
def test_a_column_has_the_values_that_were_put(seed: int):
    chance = random.Random(seed)
    column, plain = FieldColumn(3), list[Any]([UNDECIDED] * 3)
    for _ in range(500):
        value, row = chance.choice(VALUES), chance.randrange(len(plain) + 1)
        action = chance.random()
        if action < 0.4 or not plain:
            column.insert(row, value)
            plain.insert(row, value)
        elif action < 0.7:
            row = min(row, len(plain) - 1)
            column.set(row, value)
            plain[row] = value
        else:
            row = min(row, len(plain) - 1)
            column.remove(row)
            del plain[row]
        assert [column.get(at) for at in range(len(plain))] == plain
        assert [type(column.get(at)) for at in range(len(plain))] == list(map(type, plain))
    assert column.undecided == plain.count(UNDECIDED)
    assert len(column.values) <= len(VALUES), "codes that nobody has are used again"


def test_a_column_takes_little_where_values_repeat():
    few, many = FieldColumn(0), FieldColumn(0)
    for number in range(1000):
        few.insert(number, "Running")
        many.insert(number, f"a name that no other has {number}")
    assert few.size < 10_000 < many.size
    for _ in range(1000):
        many.remove(0)
    assert many.size == FieldColumn(0).size


@each_row(
    ("body", "path", "value"),
    [
        (b'{"a":{"b":"c"}}', "a.b", "c"),
        (b'{"a":"text"}', "a.b", None),
        (b'{"a":null}', "a.b", None),
        (b'{"a":[{"b":1},{"b":null},{}]}', "a[*].b", (1, None, None)),
        (b'{"a":[{"b":1},"x"]}', "a[*].b", (1,)),
        (b'{"a":{"b":{"c":1}}}', "a.b", Special.COMPOSITE),
        (b'{"a":[1,2]}', "a[1]", 2),
        (b"{}", "a[1]", None),
    ],
)
def test_a_field_is_read_without_the_rest_of_the_object(body: bytes, path: str, value: Any):
    assert field_reader(FieldPath.parse(path))(body) == value


def test_a_field_alone_is_what_the_whole_object_has_there():
    values = ('"text"', "null", "1", "1.5", "true", "[]", "{}", '{"b":null}', '{"b":{"c":2}}')
    for value in (
        *values,
        '{"b":"x","c":1}',
        '[{"b":1},"x",null]',
        '{"b":[{"c":3},{}]}',
        "[[1],[],null]",
    ):
        for body in (f'{{"a":{value}}}'.encode(), f'{{"z":1,"a":{value},"b":{value}}}'.encode()):
            for text in (
                "a",
                "b",
                "a.b",
                "a.b.c",
                "a.b.c.d",
                "a[0]",
                "a[*]",
                "a[*].b",
                "a.b[*].c",
                "a[*].b[0]",
                "a[*][*]",
                "z",
                "z.y",
            ):
                path = FieldPath.parse(text)
                expected = path.read(msgspec.json.decode(body))
                assert field_reader(path)(body) == expected, (body, text)


@each_row("body", [b"", b"{", b'{"a":1e999}', b'{"a":"\xff"}'])
def test_a_body_that_cannot_be_read_is_undecided(body: bytes):
    with pytest.raises(UnreadableBody):
        field_reader(FieldPath.parse("a"))(body)


def test_values_have_one_order_in_both_directions():
    ordered: list[Any] = [
        *(-1, 0, "100m", "0.5", 1, "1k", "1Ki", "1.5Gi", "2e10", 10**12),
        *("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "2026-01-01T02:00:01+01:00"),
        *(False, True, "", "a", "b10", "b9", "x" * 300, Special.COMPOSITE),
    ]
    shuffled = random.Random(1).sample([*ordered, None], len(ordered) + 1)
    up = sorted(shuffled, key=lambda value: rank_of(value, is_descending=False))
    assert up == [*ordered, None]
    down = sorted(shuffled, key=lambda value: rank_of(value, is_descending=True))
    assert down == [*reversed(ordered), None]


@each_row("text", ["a,,b", "a,a", "a,-a", "a,b,c,d,e", "a b", ","])
def test_a8_a_sort_that_means_nothing_is_refused(text: str):
    with pytest.raises(BadRequestProblem, match="sort"):
        parse_sort(text)


@each_row("is_descending", [True, False])
def test_every_number_has_a_place_that_a_token_can_name(is_descending: bool):
    """An integer beyond 64 bits in one object of one member was a 500 for every sorted page."""
    sort = parse_sort(f"{'-' if is_descending else ''}spec.n")
    digits = (1, 18, 19, 20, 40, 308, 309, 4000)
    numbers = [sign * (10**n + off) for n in digits for sign in (-1, 1) for off in (-1, 0, 1)]
    edges = [sign * (2**n + off) for n in (53, 63, 64) for sign in (-1, 1) for off in (-1, 0, 1)]
    texts = [f"{sign}{'9' * 40}{end}" for sign in ("", "-") for end in ("", "Ei", "e99", "m", ".5")]
    ordered = sorted([*numbers, *edges])
    ranks = [rank_of(value, is_descending=is_descending) for value in [*ordered, *texts]]
    token = FieldPosition("g", 1, b"q", dump_ranks(ranks), "eu1", b"k").to_token()
    position = read_token(token, "g", 1, b"q")
    assert load_ranks(position.ranks, sort * len(ranks)) == tuple(ranks)
    of_numbers = ranks[: len(ordered)]
    assert sorted(of_numbers, reverse=is_descending) == of_numbers
