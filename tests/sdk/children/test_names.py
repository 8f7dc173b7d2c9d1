"""Names and label values for children: readable, legal, and never those of others."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus.ownership import child_name, label_value

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=300)


def pod(namespace: str, name: str, **more: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
    } | more


@given(NAMES, NAMES, st.integers(20, 253))
def test_a_childs_name_is_a_dns_label_of_bounded_length_whatever_its_parents_name(
    namespace: str, name: str, limit: int
) -> None:
    label = child_name(pod(namespace, name), "a", limit=limit)
    assert DNS_LABEL.fullmatch(label)
    assert len(label) <= limit
    assert label == child_name(pod(namespace, name), "a", limit=limit)


def test_parents_that_read_alike_have_children_of_different_names() -> None:
    names = {
        child_name(pod("a-b", "c"), "a"),
        child_name(pod("a", "b-c"), "a"),
        child_name(pod("a", "b-c"), "c"),
        child_name(pod("a", "b", kind="Service"), "a", suffix="c"),
        child_name(pod("a", "b-c", kind="Service"), "a"),
        child_name(pod("a", "b"), "a", suffix="c"),
        child_name(pod("A", "b-c"), "a"),
        child_name(pod("a", "x" * 100), "a"),
        child_name(pod("a", "x" * 101), "a"),
    }
    assert len(names) == 9
    assert child_name(pod("kube-public", "p"), "a").startswith("kube-public-p-")


def test_a_parent_keeps_its_childs_name_when_its_kind_is_served_in_another_version() -> None:
    first, second = pod("a", "b", apiVersion="x/v1"), pod("a", "b", apiVersion="x/v2")
    assert child_name(first, "a") == child_name(second, "a")


def test_a_limit_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="between 20 and 253, not 19"):
        child_name(pod("a", "b"), "a", limit=19)


@given(st.text(max_size=300))
def test_any_text_becomes_a_label_value_and_a_legal_one_stays_itself(text: str) -> None:
    label = label_value(text)
    assert VALUE.fullmatch(label)
    assert len(label) <= 63
    assert label_value(label) == label
    if len(text) <= 63 and VALUE.fullmatch(text):
        assert label == text


def test_long_texts_that_begin_alike_become_different_label_values() -> None:
    assert label_value("l" * 80) != label_value("l" * 81)
