"""Sound objects with any JSON in some of their fields, as bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Final, cast

from hypothesis import strategies as st

_VALUES: Final = st.sampled_from(
    [
        *("null", "true", "-1", "1e999", "-0.0", "9" * 40, "9" * 5000, "0." + "1" * 400),
        *(r'"\ud800"', r'"\u0000"', '""', '"x"', '"٣"', '"1e99999Gi"', '"' + "x" * 70_000 + '"'),
        *('"9999-99-99T99:99:99Z"', '"0001-01-01T00:00:00+23:59"', '"2026-01-02T03:04:05"'),
        *("[]", "{}", "[[]]", "[null]", '["x"]', "[{}]", '{"":{}}', r'{"\udc00":1}', '{"x":[1]}'),
        *("[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300, "[" * 5000 + "]" * 5000),
        *("[" * 990 + "]" * 990, '{"f:a":' * 990 + "1" + "}" * 990, "[" + "1," * 5000 + "2]"),
        # Of managedFields.
        *('{"f:name":7}', '{"k:{":{}}', '{"v:[":{}}', '{"k:[]":{}}', r'{"k:{\"name\":[]}":{}}'),
        *('{"v:' + "[" * 5000 + '":{}}', '{"k:' + "[" * 5000 + '":{}}'),
    ]
)


@st.composite
def with_odd_fields(draw: st.DrawFn, sound: dict[str, Any]) -> bytes:
    """The object with other values in one to three places; its metadata remains a mapping."""
    tree, values = copy.deepcopy(sound), dict[str, str]()
    for number in range(draw(st.integers(1, 3))):
        every = [place for place in _places(tree) if place[1] != "metadata"]
        parent, key = draw(st.sampled_from(every))
        values[json.dumps(f"@{number}@")] = draw(_VALUES)
        parent[key] = f"@{number}@"
    text = json.dumps(tree)
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text.encode()


def _places(tree: Any) -> Iterator[tuple[Any, str | int]]:
    keys = cast("list[str | int]", [*tree] if isinstance(tree, dict) else [*range(len(tree))])
    for key in keys:
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])
