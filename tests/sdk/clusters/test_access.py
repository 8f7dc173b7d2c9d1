"""Texts in Secrets: what is wrong with one is said in words that help."""

from __future__ import annotations

import base64

from fleetbus.clusters.access import read_text
from support.rows import each_row


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@each_row(
    ("value", "problem"),
    [
        (_encoded(b"text"), ""),
        ("no base64!", "is not base64-encoded"),
        (_encoded("apiVersion: v1".encode("utf-16")), "is not text in UTF-8"),
        (_encoded(b"\xff\xfe\x00"), "is not text in UTF-8"),
        ("", "has no data key 'config'"),
    ],
)
def test_a_value_that_is_no_base64_has_other_words_than_one_that_is_no_text(
    value: str, problem: str
):
    text, found = read_text("a/b", {"data": {"config": value}}, "config")
    assert problem in found
    assert (text, bool(found)) == ("" if problem else "text", bool(problem))
