"""The ready-made predicates: what passes each, alone, composed, and in a controller that runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import fleetbus
from fleetbus.controller.filters import Predicate
from fleetbus.predicates import (
    all_of,
    annotations_changed,
    any_of,
    generation_changed,
    labels_changed,
)
from fleetbus.testing import controller_test
from support.rows import each_row

DEPLOYMENTS = "apps/v1/deployments"
READY_MADE = (generation_changed, labels_changed, annotations_changed)


def an_object(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "web", **metadata}}


@each_row("predicate", [*READY_MADE, any_of(*READY_MADE), all_of(*READY_MADE)])
def test_what_comes_or_goes_passes(predicate: Predicate) -> None:
    obj = an_object(generation=1)
    assert predicate(None, obj)
    assert predicate(obj, None)
    assert not predicate(obj, an_object(generation=1))


NONE: set[Predicate] = set()
CHANGES: list[tuple[dict[str, Any], dict[str, Any], set[Predicate]]] = [
    ({"generation": 1}, {"generation": 2}, {generation_changed}),
    ({"generation": 1}, {"generation": 1, "resourceVersion": "9"}, NONE),
    ({"generation": 1}, {"generation": 1, "managedFields": [{}]}, NONE),
    ({}, {}, {generation_changed}),  # a ConfigMap has none: nothing tells what changed
    ({"generation": 1}, {"generation": 1, "labels": {"a": "b"}}, {labels_changed}),
    ({"generation": 1, "labels": {"a": ""}}, {"generation": 1}, {labels_changed}),
    ({"generation": 1, "labels": {}}, {"generation": 1}, NONE),
    ({"generation": 1, "labels": None}, {"generation": 1, "labels": {}}, NONE),
    ({"generation": 1}, {"generation": 1, "annotations": {"a": "b"}}, {annotations_changed}),
    (
        {"generation": 1, "annotations": {"a": "b"}, "labels": {"a": "b"}},
        {"generation": 1, "annotations": {"a": "c"}, "labels": {"a": "c"}},
        {labels_changed, annotations_changed},
    ),
]


@each_row(("old", "new", "passing"), CHANGES)
def test_a_change_passes_the_predicate_of_what_changed(
    old: Any, new: Any, passing: set[Predicate]
) -> None:
    passed = {each for each in READY_MADE if each(an_object(**old), an_object(**new))}
    assert passed == passing


def test_a_composed_predicate_passes_what_any_or_all_of_its_parts_pass() -> None:
    old = an_object(generation=1)
    relabelled = an_object(generation=1, labels={"a": "b"})
    both = an_object(generation=2, labels={"a": "b"})
    either, each = any_of(generation_changed, labels_changed), all_of(*READY_MADE[:2])
    assert (either(old, old), either(old, relabelled), either(old, both)) == (False, True, True)
    assert (each(old, old), each(old, relabelled), each(old, both)) == (False, False, True)


async def later(_old: Any, _new: Any) -> bool:
    return True


@each_row("compose", [any_of, all_of])
@each_row(
    ("predicates", "message"),
    [
        ((), "needs at least one predicate"),
        ((later,), "must be a plain function, not `async def`"),
        ((generation_changed, "x"), "must be a function, not 'x'"),
        ((len,), r"is called with \(old, new\), not as"),
    ],
)
def test_a_composition_that_cannot_work_is_refused(
    compose: Callable[..., Predicate], predicates: Any, message: str
) -> None:
    with pytest.raises(fleetbus.ConfigError, match=rf"{compose.__name__} {message}"):
        compose(*predicates)


def mine(_old: Any, _new: Any) -> bool:
    return True


def test_p8_composed_predicates_of_other_parts_are_other_watches() -> None:
    def declared(predicate: Predicate) -> int:
        controller = fleetbus.Controller("copier")
        controller.watch(DEPLOYMENTS, predicate=predicate)
        (watch,) = controller.watches
        return watch.id

    declaration = declared(any_of(generation_changed, labels_changed))
    assert declaration == declared(any_of(generation_changed, labels_changed))
    others = {
        declared(any_of(generation_changed, annotations_changed)),
        declared(all_of(generation_changed, labels_changed)),
        declared(any_of(generation_changed, mine)),
    }
    assert len(others | {declaration}) == 4


def test_p8_the_parts_of_a_composed_predicate_count_as_the_authors_functions() -> None:
    controller = fleetbus.Controller("copier")
    controller.watch(DEPLOYMENTS, predicate=any_of(generation_changed, all_of(mine)))
    assert controller.functions() == (generation_changed, mine)


async def test_a_controller_is_woken_by_what_passes_and_nothing_matches_any_less(
    valkey_url: str,
) -> None:
    controller = fleetbus.Controller("specs")
    changed = fleetbus.predicates.generation_changed
    controller.watch(DEPLOYMENTS, clusters=["a"], predicate=changed)
    left: list[bool] = []

    @controller.reconcile
    async def note(request: fleetbus.Request, _fleet: fleetbus.Fleet) -> None:
        left.append(request.left)

    container = {"name": "web", "image": "nginx"}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    async with controller_test(controller, store=valkey_url) as t:
        a = t.clusters["a"]

        async def woken_by(patch: dict[str, Any], subresource: str = "") -> int:
            before, live = len(left), t.fleet.cluster("a").live
            await live.patch(DEPLOYMENTS, "default", "web", patch, subresource=subresource)
            await t.run_until_idle()
            return len(left) - before

        metadata = {"name": "web", "finalizers": ["example.com/hold"]}
        a.create(DEPLOYMENTS, {"metadata": metadata, "spec": spec}, "default")
        await t.run_until_idle()
        assert len(left) == 1
        assert await woken_by({"metadata": {"labels": {"a": "b"}}}) == 0
        assert await woken_by({"status": {"replicas": 1}}, "status") == 0
        assert await woken_by({"spec": {"replicas": 3}}) == 1
        a.delete(DEPLOYMENTS, "default", "web")
        await t.run_until_idle()
        assert len(left) == 3, "being deleted is a new generation"
        assert await woken_by({"metadata": {"finalizers": None}}) == 1, "it is gone"
    assert not any(left)


def test_the_ready_made_predicates_take_what_a_watch_gives_them() -> None:
    for predicate in READY_MADE:
        assert list(inspect.signature(predicate).parameters) == ["old", "new"]
