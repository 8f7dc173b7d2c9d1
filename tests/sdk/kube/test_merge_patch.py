"""Merge patches: the smallest one leads where it shall, and nothing is said twice."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from fleetbus.kube.merge_patch import is_merged, merged, smallest_patch

SCALARS = st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"])
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), TREES)


def exact(value: Any) -> str:
    """1 and true differ here, as they do in JSON."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return "{" + ",".join(f"{key}:{exact(fields[key])}" for key in sorted(fields)) + "}"
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return "[" + ",".join(map(exact, items)) + "]"
    return repr(value)


@given(OBJECTS, OBJECTS)
def test_the_smallest_patch_turns_one_object_into_the_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    patch = smallest_patch(before, after)
    assert exact(merged(before, patch)) == exact(after)
    assert is_merged(after, patch)
    assert bool(patch) == (exact(before) != exact(after))


def test_only_what_differs_is_named() -> None:
    before = {"metadata": {"labels": {"a": "1", "b": "2"}}, "data": {"k": "v"}}
    after = {"metadata": {"labels": {"a": "1", "c": "3"}}, "data": {"k": "v"}}
    assert smallest_patch(before, after) == {"metadata": {"labels": {"b": None, "c": "3"}}}
