"""The pure steps of a rollout, as tables and as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus_emulator.controllers.workloads.rollout import (
    REVISION,
    REVISION_HISTORY,
    Limits,
    Scale,
    Step,
    limits_of,
    recreate_step,
    revision_annotations,
    rolling_step,
    share,
    template_hash,
    without_hash,
)

TEN = Limits(desired=10, surge=3, unavailable=2)


@pytest.mark.parametrize(
    ("new", "old", "step"),
    [
        pytest.param(Scale(0), [], Step(10, ()), id="a first rollout starts everything"),
        pytest.param(Scale(0), [Scale(10, 10)], Step(3, (10,)), id="the surge comes first"),
        pytest.param(Scale(3), [Scale(10, 10)], Step(3, (8,)), id="old ones make room"),
        pytest.param(Scale(3), [Scale(8, 8)], Step(5, (8,)), id="which is filled"),
        pytest.param(Scale(5, 3), [Scale(8, 8)], Step(5, (5,)), id="as new ones are available"),
        pytest.param(Scale(5, 0), [Scale(8, 8)], Step(5, (8,)), id="else nothing moves"),
        pytest.param(Scale(10, 10), [Scale(2, 2)], Step(10, (0,)), id="the last old ones go"),
        pytest.param(Scale(12, 12), [], Step(10, ()), id="too many new ones go"),
        pytest.param(Scale(3), [Scale(5, 0), Scale(5, 5)], Step(3, (3, 5)), id="sick ones first"),
        pytest.param(
            Scale(9, 9), [Scale(2, 2), Scale(2, 2)], Step(9, (0, 0)), id="the oldest goes first"
        ),
    ],
)
def test_a_rolling_update_goes_step_by_step(new: Scale, old: list[Scale], step: Step):
    assert rolling_step(TEN, new, old) == step


@pytest.mark.parametrize(
    ("new", "old", "pods", "step"),
    [
        (Scale(0), [Scale(4, 4)], 4, Step(0, (0,))),
        (Scale(0), [Scale(0)], 1, Step(0, (0,))),
        (Scale(0), [Scale(0)], 0, Step(4, (0,))),
        (Scale(4, 4), [], 0, Step(4, ())),
    ],
)
def test_recreate_waits_for_the_last_old_pod(new: Scale, old: list[Scale], pods: int, step: Step):
    assert recreate_step(Limits(4, 0, 0), new, old, pods) == step


@st.composite
def situations(draw: st.DrawFn) -> tuple[Limits, list[int]]:
    desired = draw(st.integers(0, 20))
    surge = draw(st.integers(0, 8))
    unavailable = min(desired, draw(st.integers(0 if surge else 1, 8)))
    return Limits(desired, surge, unavailable), draw(st.lists(st.integers(0, 20), max_size=3))


@given(situations(), st.data())
def test_a_rollout_keeps_its_limits_and_arrives(
    situation: tuple[Limits, list[int]], data: st.DataObject
):
    limits, sizes = situation
    healthy = sum(sizes) >= limits.least_available
    new, old = Scale(0), [Scale(size, size) for size in sizes]
    for _ in range(200):
        before = new.spec + sum(scale.spec for scale in old)
        step = rolling_step(limits, new, old)
        total = step.new + sum(step.old)
        assert total <= max(limits.most, before)
        # Between two steps, some of the new pods become available.
        ready = data.draw(st.integers(min(new.available, step.new), step.new))
        ready = (
            step.new if (step.new, step.old) == (new.spec, tuple(s.spec for s in old)) else ready
        )
        available = min(new.available, step.new) + sum(step.old)
        if healthy:
            assert available >= limits.least_available
        new, old = Scale(step.new, ready), [Scale(size, size) for size in step.old]
        if step == Step(limits.desired, (0,) * len(old)) and ready == limits.desired:
            return
    pytest.fail(f"never arrived: {limits} {new} {old}")


@pytest.mark.parametrize(
    ("value", "total", "round_up", "expected"),
    [("25%", 3, True, 1), ("25%", 3, False, 0), (2, 10, True, 2), ("100%", 7, False, 7)],
)
def test_percentages_round_up_for_surge_and_down_for_unavailable(
    value: int | str, total: int, round_up: bool, expected: int
):
    assert share(value, total, round_up=round_up) == expected


def test_a_rollout_can_always_move():
    strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}
    assert limits_of({"spec": {"replicas": 3, "strategy": strategy}}) == Limits(3, 0, 1)


def test_the_hash_depends_on_the_template_alone_and_on_collisions():
    first, second = {"spec": {"a": 1, "b": 2}}, {"spec": {"b": 2, "a": 1}}
    assert template_hash(first) == template_hash(second)
    assert template_hash(first) != template_hash(first, collisions=1)
    assert set(template_hash(first)) <= set("bcdfghjklmnpqrstvwxz2456789")


def test_a_template_is_compared_without_the_label_of_its_replica_set():
    labelled = {"metadata": {"labels": {"app": "a", "pod-template-hash": "x"}}}
    assert without_hash(labelled) == {"metadata": {"labels": {"app": "a"}}}


def replica_set(revision: int, history: str = "") -> dict[str, object]:
    annotations = {REVISION: str(revision), **({REVISION_HISTORY: history} if history else {})}
    return {"metadata": {"annotations": annotations}}


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (None, [], {REVISION: "1"}),
        (None, [4, 2], {REVISION: "5"}),
        (replica_set(5), [4, 2], {REVISION: "5"}),
        (replica_set(3), [4], {REVISION: "5", REVISION_HISTORY: "3"}),
        (replica_set(3, "1"), [4], {REVISION: "5", REVISION_HISTORY: "1,3"}),
    ],
)
def test_the_newest_template_has_the_highest_revision(
    new: dict[str, object] | None, old: list[int], expected: dict[str, str]
):
    assert revision_annotations(new, [replica_set(revision) for revision in old]) == expected
