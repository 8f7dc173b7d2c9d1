"""A soak of about a minute: everything runs, breaks, and is right at the end.

`make soak HOURS=0.02` is the same with 20 clusters, so `make test` does not run it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.main import SoakPlan, run_soak
from soak.samples import read_samples

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),  # twenty processes start, which takes long where cores are few
]


async def test_a_soak_of_a_minute_ends_as_it_should(tmp_path: Path):
    plan = SoakPlan(seed=1, hours=1 / 60, clusters=6, rate=10, pace=3)
    figures = await run_soak(plan, tmp_path)
    assert figures.wrong == []
    assert figures.slopes  # measured, in a run that is too short for limits
    assert figures.done["stopped"]
    assert sum(figures.done.values()) > len(figures.done)  # faults, beside the marks of the run
    assert figures.written["created"] > figures.written["deleted"] > 0
    assert figures.answers["list 200"] > 0
    assert figures.answers["watch lines"] > 0
    kinds = {series.partition("/")[0] for series in read_samples(tmp_path / "samples.jsonl")}
    assert kinds >= {"memory", "descriptors", "threads", "tasks", "valkey", "nats", "disk"}
