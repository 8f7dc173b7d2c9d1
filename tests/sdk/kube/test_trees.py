"""Objects of the bus are JSON; what a decoder balks at must not stop who reads them (W16)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fleetbus.kube.trees import read_tree
from support.rows import each_row


@each_row(
    ("body", "tree"),
    [
        (b'{"a":[1,2.5,"\xc3\xa9",null,true]}', {"a": [1, 2.5, "é", None, True]}),
        (b'{"a":1e400,"b":-1e400}', {"a": math.inf, "b": -math.inf}),
        (b'{"a":' + b"9" * 400 + b"}", {"a": 10**400 - 1}),
        (b'{"a":' + b"9" * 5000 + b"}", {"a": math.inf}),
    ],
)
def test_w16_numbers_of_any_size_are_read(body: bytes, tree: Any):
    assert read_tree(body) == tree


@each_row("body", [b"", b"{", b'{"a":NaN}', b'{"a":1e400,"b":Infinity}', b'"\xff"', b"[" * 5000])
def test_what_is_no_json_is_a_value_error(body: bytes):
    with pytest.raises(ValueError):  # noqa: PT011 -- of whichever decoder looked last
        read_tree(body)
