from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleetbus_distributor.plan.intent import Basis, Inventory, Mark, Owned
from fleetbus_distributor.plan.plan import Facts, Hold, HoldReason, Plan, make_plan, record, settle
from fleetbus_distributor.render.spec import FusePolicy
from fleetbus_distributor.render.template import ObjectRef
from support.rows import each_row

A, B = (ObjectRef("v1", "ConfigMap", "default", name) for name in "ab")


def owned(clusters: Mapping[str, Iterable[ObjectRef]]) -> Inventory:
    return {
        name: {ref.key: Owned(ref, f"uid-{name}-{ref.name}") for ref in refs}
        for name, refs in clusters.items()
    }


def bases(names: Iterable[str], generation: int, labels: str) -> dict[str, Basis]:
    return {name: Basis(generation, labels) for name in names}


def facts(
    desired: Mapping[str, list[ObjectRef]],
    has: Mapping[str, Iterable[ObjectRef]],
    *,
    fleet: str = "t1 t2 t3 t4",
    relabelled: str = "",
    edited: bool = False,
    **fields: Any,
) -> Facts:
    """The facts of a round; unless the spec was `edited`, no deletion is requested."""
    generation = fields.pop("generation", 5)
    present = bases(fleet.split(), generation, "now")
    before = bases(has, generation - edited, "now") | bases(relabelled.split(), 0, "then")
    inventory = fields.pop("inventory", owned(has))
    return Facts(
        wanted=desired,
        inventory=inventory,
        present=fields.pop("present", present),
        bases=fields.pop("bases", before),
        unjoined=frozenset(fields.pop("left", "").split()),
        fuse=fields.pop("fuse", FusePolicy()),
        generation=generation,
        **fields,
    )


def pruned(plan: Plan) -> dict[str, list[str]]:
    return {name: [ref.ref.name for ref in refs] for name, refs in plan.prune.items()}


def many(clusters: int, objects: int) -> dict[str, list[ObjectRef]]:
    refs = [ObjectRef("v1", "ConfigMap", "default", f"m{n}") for n in range(objects)]
    return {f"t{n}": refs for n in range(clusters)}


def test_what_is_no_longer_named_is_pruned_there_and_only_there():
    has = {"t1": [A], "t2": [A], "t3": [A], "t4": [A]}
    plan = make_plan(facts({"t1": [A], "t2": [A], "t3": [A]}, has))
    assert pruned(plan) == {"t4": ["a"]}
    assert plan.hold is None


def test_a_renamed_object_is_pruned_by_its_old_name():
    assert pruned(make_plan(facts({"t1": [B]}, {"t1": [A]}, edited=True))) == {"t1": ["a"]}


def test_another_version_of_the_same_kind_prunes_nothing():
    old = ObjectRef("x.io/v1beta1", "K", "default", "a")
    new = ObjectRef("x.io/v1", "K", "default", "a")
    assert pruned(make_plan(facts({"t1": [new]}, {"t1": [old]}))) == {}


def test_d1_one_error_anywhere_prunes_nothing_anywhere():
    broken = frozenset({"t2"})
    plan = make_plan(facts({"t1": []}, {"t1": [A], "t2": [A]}, unrendered=broken))
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
    assert [released_object.ref for released_object in plan.released["c3"]] == [A]


def test_d8_an_empty_cluster_list_prunes_nothing():
    plan = make_plan(facts({}, {"t1": [A], "t2": [A]}, fleet=""))
    assert plan.prune == {}
    assert plan.gone == ["t1", "t2"]


@each_row(
    ("clusters", "objects", "count", "limits", "is_held"),
    [
        (10, 3, 8, {}, True),  # 2 clusters
        (10, 3, 9, {}, False),
        (4, 6, 3, {}, False),  # 25 %
        (3, 6, 2, {}, True),  # 33 %
        (10, 21, 9, {}, True),  # 21 objects
        (10, 20, 9, {}, False),
        (10, 3, 8, {"clusters": 3}, False),
        (10, 3, 7, {"clusters": 3}, True),
        (10, 3, 9, {"clusters": 1}, True),
        (3, 6, 2, {"percent": 34}, False),
        (10, 21, 9, {"objects": 21}, False),
        (10, 3, 9, {"objects": 2}, True),
    ],
)
def test_d8_each_limit_alone_holds(
    clusters: int, objects: int, count: int, limits: dict[str, int], is_held: bool
):
    has = many(clusters, objects)
    desired = {name: has[name] for name in list(has)[:count]}
    fuse = FusePolicy.model_validate(limits)
    plan = make_plan(facts(desired, has, fleet=" ".join(has), fuse=fuse))
    assert (plan.hold is not None and plan.hold.reason is HoldReason.FUSE) is is_held
    assert bool(plan.prune) is not is_held
    assert plan.held.keys() == (has.keys() - desired if is_held else set())


@pytest.mark.parametrize("way", ["placement", "template"])
def test_d8_an_explicit_edit_is_not_held(way: str):
    has = many(30, 10)
    desired = {name: [B] for name in has} if way == "template" else {"t0": has["t0"]}
    plan = make_plan(facts(desired, has, fleet=" ".join(has), edited=True))
    assert plan.hold is None
    assert plan.automatic == {}
    assert plan.prune == plan.requested
    assert len(plan.prune) == (30 if way == "template" else 29)


def test_d8_of_an_edit_and_a_relabelling_at_once_only_the_edit_was_asked_for():
    has = {name: [A, B] for name in ("t1", "t2", "t3", "t4")}
    desired = {"t1": [A], "t2": [A]}  # b was edited away, t3 and t4 were relabelled
    plan = make_plan(facts(desired, has, edited=True, relabelled="t3 t4"))
    assert pruned(plan) == {"t1": ["b"], "t2": ["b"]}
    assert set(plan.held) == {"t3", "t4"}


def test_d8_labels_do_not_matter_where_no_selector_could_choose_the_cluster():
    has = {name: [A] for name in ("t1", "t2", "t3")}
    question = facts({"t1": [A]}, has, edited=True, relabelled="t2 t3")
    assert set(make_plan(question).held) == {"t2", "t3"}
    plan = make_plan(replace(question, unselectable=frozenset({"t2", "t3"})))
    assert set(plan.prune) == {"t2", "t3"}


def test_d8_what_an_edit_dropped_stays_dropped_whatever_the_labels_become():
    has = {name: [A] for name in ("t1", "t2", "t3")}
    dropped = {
        name: {key: replace(entry, mark=Mark.DROPPED) for key, entry in entries.items()}
        for name, entries in owned(has).items()
    }
    plan = make_plan(facts({"t1": [A]}, has, inventory=dropped, relabelled="t2 t3"))
    assert set(plan.prune) == {"t2", "t3"}


def after(done: Facts, plan: Plan) -> Facts:
    """The facts of the next round, if nothing could be applied."""
    needed = record(done, plan)
    return replace(done, inventory=needed, bases=settle(done, plan, needed))


def edited(before: Facts) -> Facts:
    generation = before.generation + 1
    present = {
        name: replace(entry, generation=generation) for name, entry in before.present.items()
    }
    return replace(before, generation=generation, present=present)


def test_d2_what_was_owned_stays_on_record_until_it_is_known_to_be_gone():
    done = facts({"t1": [B], "t2": [A]}, {"t1": [A]})
    needed = record(done, make_plan(done))
    assert needed["t1"] == {A.key: Owned(A, "uid-t1-a", Mark.UNREQUESTED), B.key: Owned(B)}
    assert needed["t2"] == {A.key: Owned(A)}


def test_d8_what_an_edit_dropped_is_forgotten_when_it_is_wanted():
    has = {"t1": [A], "t2": [A]}
    dropped = facts({"t1": [A]}, has, edited=True)
    first = after(dropped, make_plan(dropped))
    assert first.inventory["t2"][A.key].mark is Mark.DROPPED
    again = replace(edited(first), wanted=has)
    entries = record(again, make_plan(again))
    assert entries["t2"][A.key].mark is Mark.REPLACEABLE


def test_d8_a_later_edit_does_not_make_an_earlier_relabelling_explicit():
    has = {name: [A] for name in ("t1", "t2", "t3")}
    first = facts({"t1": [A]}, has, relabelled="t2 t3")
    held_plan = make_plan(first)
    assert set(held_plan.held) == {"t2", "t3"}
    assert set(make_plan(edited(after(first, held_plan))).held) == {"t2", "t3"}


def test_d8_a_cluster_without_a_basis_was_not_edited():
    has = {name: [A] for name in ("t1", "t2", "t3")}
    unknown = facts({"t1": [A]}, has, bases={})
    plan = make_plan(unknown)
    assert set(plan.held) == {"t2", "t3"}
    assert set(make_plan(edited(after(unknown, plan))).held) == {"t2", "t3"}


def test_d8_nothing_is_evaluated_where_a_template_cannot_be_rendered():
    has = {"t1": [A], "t2": [A], "t4": [A]}
    broken = facts({"t1": [A]}, has, edited=True, unrendered=frozenset({"t2"}))
    plan = make_plan(broken)
    needed = record(broken, plan)
    assert settle(broken, plan, needed) == {
        "t1": Basis(5, "now"),
        "t2": Basis(4, "now"),
        "t4": Basis(5, "now"),
    }
    assert needed["t4"][A.key].mark is Mark.DROPPED
    assert needed["t2"][A.key].mark is Mark.NONE


def test_d8_a_plan_that_was_held_stays_held_when_the_limits_would_allow_it_by_now():
    has = many(10, 1)
    question = facts({name: has[name] for name in list(has)[:9]}, has, fleet=" ".join(has))
    plan = make_plan(question)
    assert plan.hold is None
    before = Hold(HoldReason.FLEET, plan.plan_hash)
    again = make_plan(replace(question, hold=before))
    assert again.hold is not None
    assert again.hold.reason is HoldReason.FLEET
    assert again.prune == {}
    later = make_plan(edited(after(replace(question, hold=before), again)))
    assert later.hold is not None, "an edit that does not ask for it is no answer"
    assert later.plan_hash != plan.plan_hash
    assert later.prune == {}
    assert make_plan(replace(question, hold=before, confirmed=plan.plan_hash)).prune == plan.prune


def test_d8_a_hold_for_an_empty_selection_has_another_reason_once_there_is_a_selection():
    has = many(10, 1)
    before = Hold(HoldReason.EMPTY_SELECTION, "before")
    question = facts(
        {name: has[name] for name in list(has)[:9]}, has, fleet=" ".join(has), hold=before
    )
    plan = make_plan(question)
    assert plan.hold is not None
    assert plan.hold.reason is HoldReason.FUSE


def test_d8_what_is_rendered_otherwise_than_before_is_not_asked_for_by_a_later_edit():
    has = {name: [A, B] for name in ("t1", "t2")}
    question = facts({name: [A] for name in has}, has)
    plan = make_plan(question)
    assert set(plan.held) == set(has)
    again = edited(after(question, plan))
    for hold in (plan.hold, None):
        assert make_plan(replace(again, hold=hold)).prune == {}


def test_t18_with_limit_one_the_removal_of_two_of_three_is_held_until_confirmed():
    has = {"t1": [A], "t2": [A], "t3": [A]}
    question = facts({"t1": [A]}, has, fuse=FusePolicy(objects=1))
    held_plan = make_plan(question)
    assert held_plan.prune == {}
    assert held_plan.hold is not None
    assert held_plan.plan_hash in held_plan.hold.message
    assert "2 of 3 objects on 2 cluster(s)" in held_plan.hold.message
    released = make_plan(replace(question, confirmed=held_plan.plan_hash))
    assert pruned(released) == {"t2": ["a"], "t3": ["a"]}
    assert released.hold is None
    assert released.automatic == {}


def test_d8_a_confirmation_holds_for_the_rest_of_an_interrupted_round_and_for_nothing_else():
    has = {"t1": [A], "t2": [A], "t3": [A], "t4": [A]}
    limits = FusePolicy(objects=1, percent=0)
    question = facts({"t1": [A]}, has, fuse=limits)
    first = make_plan(question).plan_hash
    confirmed = replace(question, confirmed=first)
    next_facts = after(confirmed, make_plan(confirmed))
    plan = make_plan(next_facts)
    assert set(plan.prune) == {"t2", "t3", "t4"}
    assert plan.hold is None
    other = [
        facts({"t2": [A]}, has, fuse=limits, confirmed=first),
        facts({"t1": [A]}, has, fuse=limits, confirmed=first, generation=2),
        facts({"t1": [A]}, has, fuse=limits, confirmed=first, uid="another"),
        facts({"t1": [A]}, has, fuse=limits, confirmed=first, nonce="another"),
        facts({"t1": [A]}, has | {"c9": [A]}, fuse=limits, confirmed=first),
        facts({"t1": [A]}, has | {"t2": [A, B]}, fuse=limits, confirmed=first),
        facts({"t1": [A]}, {"t1": [A], "t2": [A], "t3": [A]}, fuse=limits, confirmed=first),
    ]
    assert all(make_plan(question_facts).held for question_facts in other)


def test_d8_a_question_keeps_its_name_while_it_stands_and_never_gets_it_again():
    has = {name: [A] for name in ("t1", "t2", "t3", "t4")}
    question = facts({"t1": [A], "t4": [A]}, has, nonce="first")
    hold = make_plan(question).hold
    assert hold is not None
    same = make_plan(replace(question, hold=hold, nonce="second"))
    assert same.hold == hold
    grown = make_plan(replace(question, wanted={"t1": [A]}, hold=hold, nonce="second"))
    again = make_plan(replace(question, hold=grown.hold, nonce="third", confirmed=hold.plan_hash))
    assert again.hold is not None
    assert again.hold.plan_hash != hold.plan_hash


@each_row("edited", [True, False])
@each_row("clusters", [["t1"], ["t1", "t2"]])
def test_d8_no_cluster_at_all_is_held_even_after_an_edit(edited: bool, clusters: list[str]):
    plan = make_plan(facts({}, {name: [A] for name in clusters}, edited=edited))
    assert plan.hold is not None
    assert plan.hold.reason is HoldReason.EMPTY_SELECTION
    assert plan.prune == plan.requested == {}
    assert list(plan.held) == clusters


def test_nothing_is_held_when_nothing_would_be_deleted():
    has = many(30, 1)
    plan = make_plan(facts({"t0": has["t0"]}, has, fleet=" ".join(has), keeps_objects=True))
    assert plan.hold is None
    assert plan.automatic == {}
    assert len(plan.prune) == 29
