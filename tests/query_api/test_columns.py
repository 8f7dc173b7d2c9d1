"""Ages are those of kubectl; tables are aligned, and warnings short."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from fleetbus.process.human_time import render_age, render_duration
from fleetbus_cli.table import render_table, warn_incomplete
from support.rows import each_row

Tree = dict[str, Any]


@each_row(("seconds", "text"), [
        (-3, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"),
        (600, "10m"), (10_799, "179m"), (10_800, "3h"), (11_100, "3h5m"), (28_800, "8h"),
        (172_799, "47h"), (172_800, "2d"), (180_000, "2d2h"), (691_200, "8d"),
        (63_072_000, "2y"), (66_000_000, "2y33d"), (252_288_000, "8y"),
    ])  # fmt: skip
def test_spans_are_written_as_kubectl_does(seconds: float, text: str):
    assert render_duration(seconds) == text


def test_an_age_is_measured_from_now():
    now = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    assert render_age("2026-01-01T00:00:00Z", now) == "5m"
    assert render_age(None, now) == "<unknown>"
    assert render_age("yesterday", now) == "<unknown>"


def test_a_table_is_aligned_and_brings_no_control_characters():
    text = render_table(["A", "BBB"], [["long", ""], ["x", "a\x1b[31m\nb"]])

    assert text.splitlines() == ["A      BBB", "long   <none>", "x      a?[31m?b"]


def test_a4_clusters_behind_for_one_reason_share_a_line(capsys: pytest.CaptureFixture[str]):
    freshness: dict[str, Tree] = {
        f"c{i}": {"reason": "not watched there", "ageSeconds": None} for i in range(8)
    }
    freshness["c9"] = {"reason": "refused", "ageSeconds": 130.2}

    freshness["c10"] = freshness["c9"]
    warn_incomplete(freshness, list(freshness), named=["c3", "c9"])

    assert capsys.readouterr().err.splitlines() == [
        "note: not served, or not watched, in c3",
        "warning: c9, c10 are incomplete: refused; its API server last answered 2m10s ago",
    ]
