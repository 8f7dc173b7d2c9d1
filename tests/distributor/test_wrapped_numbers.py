"""Whole numbers that an API server cuts without a word are reported (rule D3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus_distributor.render.finish import finish
from fleetbus_distributor.targets.outcome import State
from fleetbus_distributor.targets.wrapped_numbers import wrapped_number
from support.rigs.real_cluster import real_cluster
from support.rows import each_row

LARGE = 2**40
POD: dict[str, Any] = {"containers": [{"name": "c", "image": "i"}]}
WRAPPED = "the server has stored"


def deployment(replicas: int) -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": POD}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    metadata = {"name": "w", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


@each_row(
    ("desired", "live", "found"),
    [
        ({"spec": {"replicas": LARGE}}, {"spec": {"replicas": 0}}, f".spec.replicas: {WRAPPED} 0"),
        ({"a": [{"b": LARGE + 7}]}, {"a": [{"b": 7}]}, f".a[0].b: {WRAPPED} 7"),
        ({"a": -(2**31) - 1}, {"a": 2**31 - 1}, f".a: {WRAPPED} 2147483647"),
        ({"a": LARGE}, {"a": LARGE}, ""),
        ({"a": LARGE}, {"a": 5}, ""),  # a webhook has another opinion
        ({"a": LARGE}, {"a": "0"}, ""),
        ({"a": LARGE}, {}, ""),
        ({"a": [LARGE]}, {"a": [1, 0]}, ""),
        ({"a": 0}, {"a": 53}, ""),
        ({"a": True}, {"a": 1}, ""),
    ],
)
def test_d3_only_what_was_cut_counts(desired: Any, live: Any, found: str):
    assert wrapped_number(desired, live).startswith(found)
    assert bool(wrapped_number(desired, live)) == bool(found)


@given(st.integers(-(2**63), 2**63 - 1))
def test_d3_each_number_that_32_bits_cannot_hold_is_found(number: int):
    stored = (number + 2**31) % 2**32 - 2**31
    assert bool(wrapped_number({"a": number}, {"a": stored})) == (stored != number)


@pytest.mark.full
async def test_d3_a_real_server_cuts_and_is_asked_once(tmp_path: Path):
    async with real_cluster(tmp_path) as cluster:
        versions: set[str] = set()
        result = None
        for is_same in (False, True, True):
            cluster.is_same = is_same
            result = await cluster.round(finish(deployment(LARGE), "t"))
            assert (result.state, result.reason) == (State.FAILED, "Invalid")
            assert f".spec.replicas: {WRAPPED} 0 for {LARGE}" in result.message
            live = await cluster.get("apps/v1/deployments", "default", "w")
            versions.add(live["metadata"]["resourceVersion"])
        assert len(versions) == 1
        assert result
        assert result.changes == []
        cluster.is_same = False
        corrected = await cluster.round(finish(deployment(1), "t"))
        assert (corrected.state, corrected.message) == (State.APPLIED, "")
