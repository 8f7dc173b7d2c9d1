from collections.abc import Iterable, Mapping

import pytest

from fleetbus_distributor.intent import Inventory, Owned
from fleetbus_distributor.model import Fuse
from fleetbus_distributor.plan import Facts, HoldReason, Plan, make_plan
from fleetbus_distributor.render import ObjectRef

A, B = (ObjectRef("v1", "ConfigMap", "default", name) for name in "ab")


def owned(clusters: Mapping[str, Iterable[ObjectRef]]) -> Inventory:
    return {
        name: {ref.key: Owned(ref, f"uid-{name}-{ref.name}") for ref in refs}
        for name, refs in clusters.items()
    }


def facts(
    wanted: Mapping[str, list[ObjectRef]],
    has: Mapping[str, Iterable[ObjectRef]],
    *,
    fleet: str = "t1 t2 t3 t4",
    left: str = "",
    complete: bool = True,
    by_selector: bool = False,
    fuse: Fuse | None = None,
    confirmed: str = "",
    generation: int = 1,
    keeps_objects: bool = False,
) -> Facts:
    return Facts(
        wanted=wanted,
        inventory=owned(has),
        fleet=frozenset(fleet.split()),
        left=frozenset(left.split()),
        complete=complete,
        by_selector=by_selector,
        generation=generation,
        fuse=fuse or Fuse(),
        confirmed=confirmed,
        keeps_objects=keeps_objects,
    )


def pruned(plan: Plan) -> dict[str, list[str]]:
    return {name: [one.ref.name for one in refs] for name, refs in plan.prune.items()}


def many(clusters: int, objects: int) -> dict[str, list[ObjectRef]]:
    refs = [ObjectRef("v1", "ConfigMap", "default", f"m{n}") for n in range(objects)]
    return {f"t{n}": refs for n in range(clusters)}


def test_what_is_no_longer_named_is_pruned_there_and_only_there():
    plan = make_plan(facts({"t1": [A], "t2": [A]}, {"t1": [A], "t2": [A], "t4": [A]}))
    assert pruned(plan) == {"t4": ["a"]}
    assert plan.hold is None


def test_a_renamed_object_is_pruned_by_its_old_name():
    assert pruned(make_plan(facts({"t1": [B]}, {"t1": [A]}))) == {"t1": ["a"]}


def test_another_version_of_the_same_kind_prunes_nothing():
    old = ObjectRef("x.io/v1beta1", "K", "default", "a")
    new = ObjectRef("x.io/v1", "K", "default", "a")
    assert pruned(make_plan(facts({"t1": [new]}, {"t1": [old]}))) == {}


def test_d1_one_error_anywhere_prunes_nothing_anywhere():
    plan = make_plan(facts({"t1": []}, {"t1": [A], "t2": [A]}, complete=False))
    assert plan.prune == {}
    assert plan.held == {}


def test_d7_a_cluster_that_vanished_keeps_its_entries():
    plan = make_plan(facts({"t1": [A]}, {"t1": [A], "c3": [A]}))
    assert plan.gone == ["c3"]
    assert pruned(plan) == {}
    assert plan.released == {}


def test_d7_an_unjoined_cluster_is_released():
    plan = make_plan(facts({"t1": [A]}, {"t1": [A], "c3": [A]}, left="c3"))
    assert plan.gone == []
    assert [one.ref for one in plan.released["c3"]] == [A]


def test_d8_an_empty_cluster_list_prunes_nothing():
    plan = make_plan(facts({}, {"t1": [A], "t2": [A]}, fleet=""))
    assert plan.prune == {}
    assert plan.gone == ["t1", "t2"]


@pytest.mark.parametrize(
    ("clusters", "objects", "kept", "held"),
    [
        (10, 3, 5, False),  # 15 objects of 30: over 30 %, not over 20
        (10, 10, 8, False),  # 20 objects of 100: neither
        (100, 1, 79, False),  # 21 objects of 100: over 20, not over 30 %
        (100, 1, 70, False),  # exactly 30 %
        (100, 1, 69, True),  # both
    ],
)
def test_d8_the_fuse_needs_both_limits(clusters: int, objects: int, kept: int, held: bool):
    has = many(clusters, objects)
    wanted = {name: has[name] for name in list(has)[:kept]}
    plan = make_plan(facts(wanted, has, fleet=" ".join(has)))
    assert (plan.hold is HoldReason.FUSE) is held
    assert bool(plan.prune) is not held


@pytest.mark.parametrize("way", ["placement", "template", "selector"])
def test_d8_each_way_to_shrink_is_held(way: str):
    has = many(30, 1)
    wanted = {"template": {name: [B] for name in has}}.get(way, {"t0": has["t0"]})
    plan = make_plan(facts(wanted, has, fleet=" ".join(has), by_selector=way == "selector"))
    assert plan.hold is HoldReason.FUSE
    assert plan.prune == {}


def test_t18_with_limit_one_the_removal_of_two_of_three_is_held_until_confirmed():
    has = {"t1": [A], "t2": [A], "t3": [A]}
    limits = Fuse(objects=1)
    held = make_plan(facts({"t1": [A]}, has, fuse=limits))
    assert held.prune == {}
    assert held.plan_hash in held.message
    assert "2 of 3 objects on 2 cluster(s)" in held.message
    released = make_plan(facts({"t1": [A]}, has, fuse=limits, confirmed=held.plan_hash))
    assert pruned(released) == {"t2": ["a"], "t3": ["a"]}
    assert released.hold is None


def test_d8_a_confirmation_holds_for_the_rest_of_an_interrupted_round_and_for_nothing_else():
    has = {"t1": [A], "t2": [A], "t3": [A], "t4": [A]}
    limits = Fuse(objects=1, percent=0)
    first = make_plan(facts({"t1": [A]}, has, fuse=limits)).plan_hash
    rest = {"t1": [A], "t3": [A], "t4": [A]}
    assert make_plan(facts({"t1": [A]}, rest, fuse=limits, confirmed=first)).hold is None
    other = [
        facts({"t2": [A]}, has, fuse=limits, confirmed=first),
        facts({"t1": [A]}, has, fuse=limits, confirmed=first, generation=2),
        facts({"t1": [A]}, has | {"c9": [A]}, fuse=limits, confirmed=first),
    ]
    assert all(make_plan(one).hold is HoldReason.FUSE for one in other)


def test_d8_a_selector_that_suddenly_matches_nothing_is_held():
    plan = make_plan(facts({}, {"t1": [A], "t2": [A]}, by_selector=True))
    assert plan.hold is HoldReason.EMPTY_SELECTION
    assert plan.prune == {}


def test_t18_one_cluster_relabelled_on_purpose_is_no_accident():
    plan = make_plan(facts({}, {"t1": [A]}, by_selector=True))
    assert pruned(plan) == {"t1": ["a"]}


def test_an_explicit_edit_of_names_below_the_limits_is_never_held():
    plan = make_plan(facts({}, {"t1": [A], "t2": [A]}))
    assert pruned(plan) == {"t1": ["a"], "t2": ["a"]}


def test_nothing_is_held_when_nothing_would_be_deleted():
    has = many(30, 1)
    plan = make_plan(facts({"t0": has["t0"]}, has, fleet=" ".join(has), keeps_objects=True))
    assert plan.hold is None
    assert len(plan.prune) == 29
