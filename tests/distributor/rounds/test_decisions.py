"""The decisions of a round, as tables: pure functions of its facts."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.intent import Basis, Inventory, Mark, Owned
from fleetbus_distributor.plan.plan import Facts, HoldReason, make_plan
from fleetbus_distributor.render.draft import Draft, Problem
from fleetbus_distributor.render.place import Member, Placed
from fleetbus_distributor.render.spec import DeletionPolicy, FusePolicy, Spec, read_spec
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.rounds.cleanup import keep_finalizer, left_behind, with_absent
from fleetbus_distributor.rounds.decide import Decision, decide
from fleetbus_distributor.rounds.repair import as_reported, corrections, retry_after, waits_for_all
from fleetbus_distributor.rounds.report import complete_outcomes, follow_up, report_of
from fleetbus_distributor.rounds.settled import HubFacts, LastRound, Scope, scope_of
from fleetbus_distributor.targets.converge import ALIASED
from fleetbus_distributor.targets.outcome import Change, ClusterOutcome, LeftBehind, State
from fleetbus_distributor.targets.target import LATER, SOON
from support.rows import each_row

MINUTE = timedelta(minutes=1)
NOW, NEW = "revision-1", "revision-2"
NOBODY = frozenset[str]()
ALONE: dict[str, timedelta] = {}


def ref(name: str) -> ObjectRef:
    return ObjectRef("v1", "ConfigMap", "default", name)


def entries(names: str, **fields: Any) -> dict[Any, Owned]:
    return {ref(name).key: Owned(ref(name), f"uid-{name}", **fields) for name in names}


def owned(**clusters: str) -> Inventory:
    return {cluster: entries(names) for cluster, names in clusters.items()}


def spec(**policy: str) -> Spec:
    template = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    return read_spec({"spec": {"template": template, "policy": policy}})


def draft(
    wanted: Mapping[str, str],
    *,
    unknown: str = "",
    waiting: str = "",
    broken: str = "",
    revision: str = NOW,
) -> Draft:
    """A draft, by the names of the objects that each cluster is to have."""
    placed = sorted({*wanted, *waiting.split(), *broken.split()})
    return Draft(
        placed=Placed([Member(name) for name in placed], unknown.split()),
        objects={cluster: [{"name": name} for name in names] for cluster, names in wanted.items()},
        wanted={cluster: [ref(name) for name in names] for cluster, names in wanted.items()},
        revisions=dict.fromkeys(wanted, revision),
        problems={name: Problem("RenderFailed", "no such variable") for name in broken.split()},
        waiting=frozenset(waiting.split()),
    )


def decided(
    wanted: Mapping[str, str],
    recorded: Inventory,
    *,
    fleet: str = "t1 t2 t3 t4",
    generation: int = 5,
    fuse: FusePolicy | None = None,
    applied: Mapping[str, str] | None = None,
    only: frozenset[str] | None = None,
    policy: Mapping[str, str] | None = None,
    **drafted: Any,
) -> Decision:
    """The decision of a round whose record is of generation 5."""
    drafted_ = draft(wanted, **drafted)
    waiting = {name: [one.ref for one in recorded[name].values()] for name in drafted_.waiting}
    facts = Facts(
        wanted={**drafted_.wanted, **waiting},
        inventory=recorded,
        bases=dict.fromkeys(recorded, Basis(5, "labels")),
        present=dict.fromkeys(fleet.split(), Basis(generation, "labels")),
        unrendered=frozenset(drafted_.problems),
        generation=generation,
        fuse=fuse or FusePolicy(),
    )
    return decide(
        facts,
        make_plan(facts),
        drafted_,
        spec(**policy or {}),
        applied=applied or {},
        only=only,
    )


# --- which clusters are written ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "recorded", "changes", "work"),
    [
        pytest.param({"t1": "a"}, owned(), {}, {"t1": ""}, id="what is wanted is applied"),
        pytest.param(
            {"t1": "a"}, owned(t1="ab"), {"generation": 6}, {"t1": "b"}, id="what is not, goes"
        ),
        pytest.param(
            {"t1": "a"},
            owned(t1="a", t2="a"),
            {"generation": 6},
            {"t1": "", "t2": "a"},
            id="also where nothing is wanted any more",
        ),
        pytest.param(
            {"t1": "a"}, owned(t1="a", t2="a"), {"broken": "t3"}, {"t1": ""}, id="d1 nothing goes"
        ),
        pytest.param(
            {"t1": "a"}, owned(t1="a", t9="a"), {}, {"t1": ""}, id="d7 nor on a cluster that left"
        ),
        pytest.param(
            {"t1": "a"}, owned(t1="a", t2="ab"), {"waiting": "t2"}, {"t1": ""}, id="d17 nor waits"
        ),
        pytest.param(
            {"t1": "a", "t2": "a"},
            owned(t1="a", t2="a"),
            {"only": frozenset({"t2"})},
            {"t2": ""},
            id="of a settled round only those that need it",
        ),
    ],
)
def test_a_round_works_where_something_is_wanted_or_goes(
    wanted: dict[str, str], recorded: Inventory, changes: dict[str, Any], work: dict[str, str]
):
    decision = decided(wanted, recorded, **changes)
    pruned = {
        name: "".join(one.ref.name for one in share.prune) for name, share in decision.work.items()
    }
    assert pruned == work
    assert all(decision.work[name].recorded == decision.record[name] for name in work)


@each_row(
    ("applied", "drift", "is_same", "only_compare"),
    [
        ("", "Correct", False, False),
        (NEW, "Report", False, False),
        (NOW, "Correct", True, False),
        (NOW, "Report", True, True),
    ],
)
def test_drift_is_only_reported_of_a_revision_that_was_applied(
    applied: str, drift: str, is_same: bool, only_compare: bool
):
    decision = decided({"t1": "a"}, owned(), applied={"t1": applied}, policy={"drift": drift})
    assert decision.work["t1"].is_same is is_same
    assert decision.work["t1"].only_compare is only_compare
    assert decision.work["t1"].may_create


@pytest.mark.parametrize(
    ("recorded", "generation", "must_record"),
    [
        pytest.param(owned(), 5, True, id="d2 an object that is about to be ours"),
        pytest.param(owned(t1="a"), 5, False, id="nothing new"),
        pytest.param(owned(t1="ab"), 6, True, id="d8 a deletion that an edit requests"),
        pytest.param(owned(t1="ab"), 5, False, id="one that nobody requests can wait"),
    ],
)
def test_d2_the_record_is_written_first_if_it_lacks_anything(
    recorded: Inventory, generation: int, must_record: bool
):
    assert decided({"t1": "a"}, recorded, generation=generation).must_record is must_record


def test_d2_an_intent_that_cannot_be_stored_lets_nothing_be_written(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(intent, "MAX_BYTES", 100)
    monkeypatch.setattr(intent, "MAX_PARTS", 0)
    with pytest.raises(IntentError, match="split it"):
        decided({"t1": "a"}, owned())


# --- which clusters the next round looks at ---------------------------------------------------

LAST = LastRound(HubFacts(5, "", b"", (), NOBODY), 7.0, MINUTE)


@pytest.mark.parametrize(
    ("last", "notes", "touched", "scope"),
    [
        pytest.param(None, NOBODY, NOBODY, Scope(), id="the facts are new"),
        pytest.param(LAST, None, NOBODY, Scope(), id="the notes cannot be read"),
        pytest.param(
            LAST,
            frozenset({"t1 x", "t1 y"}),
            NOBODY,
            Scope(frozenset({"t1"}), only_missing=True),
            id="something is missing",
        ),
        pytest.param(LAST, NOBODY, NOBODY, Scope(NOBODY, only_missing=True), id="nothing is"),
        pytest.param(
            LAST,
            frozenset({"t1 x"}),
            frozenset({"t2"}),
            Scope(frozenset({"t1", "t2"})),
            id="a wave moves",
        ),
    ],
)
def test_d11_all_clusters_are_worked_on_unless_the_last_round_settled_the_same_facts(
    last: LastRound | None,
    notes: frozenset[str] | None,
    touched: frozenset[str],
    scope: Scope,
):
    assert scope_of(last, notes, touched) == scope


# --- what follows, and whether the round is settled -------------------------------------------


def followed(decision: Decision, *outcomes: ClusterOutcome) -> tuple[Any, ...]:
    complete = complete_outcomes(decision, outcomes, {})
    following = follow_up(decision, outcomes, complete)
    return following.retry, following.is_settled, dict(following.clusters)


def outcome(name: str, names: str = "a", **fields: Any) -> ClusterOutcome:
    inventory = fields.pop("inventory", entries(names))
    return ClusterOutcome(name, inventory=inventory, revision=NOW, **fields)


@pytest.mark.parametrize(
    ("decision", "outcomes", "follow"),
    [
        pytest.param(
            decided({"t1": "a"}, owned(t1="a")),
            [outcome("t1")],
            (None, True, ALONE),
            id="all is applied",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="a")),
            [outcome("t1", state=State.UNREACHABLE, retry=LATER)],
            (None, True, {"t1": LATER}),
            id="d11 a cluster that is away is looked at alone",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="a", t2="a"), generation=6),
            [outcome("t1"), outcome("t2", state=State.DELETING, retry=SOON)],
            (SOON, False, ALONE),
            id="a deletion is up to the round for all",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="ab"), generation=6),
            [outcome("t1", "ab", state=State.DELETING, retry=SOON)],
            (SOON, False, ALONE),
            id="also on a cluster that stays",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="a"), unknown="t9"),
            [outcome("t1")],
            (LATER, True, ALONE),
            id="whoever joins says so",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="a", t9="a")),
            [outcome("t1")],
            (LATER, True, ALONE),
            id="d7 whoever has left comes back, or is unjoined, and says so",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="a")),
            [outcome("t1", inventory=entries("a", mark=Mark.OUTDATED))],
            (SOON, False, ALONE),
            id="an object turned out to need a replacement, which is planned first",
        ),
    ],
)
def test_d11_a_round_is_settled_if_only_events_matter(
    decision: Decision, outcomes: list[ClusterOutcome], follow: tuple[Any, ...]
):
    assert followed(decision, *outcomes) == follow


# --- what is shown ----------------------------------------------------------------------------


def shown(decision: Decision, *outcomes: ClusterOutcome, before: Any = None) -> dict[str, str]:
    complete = complete_outcomes(decision, outcomes, before or {})
    report = report_of(decision, complete, generation=5, rollout=None)
    return {one.name: f"{one.state}/{one.reason}" for one in report.outcomes}


FEW = FusePolicy(clusters=2)


@pytest.mark.parametrize(
    ("decision", "states"),
    [
        pytest.param(
            decided({"t1": "a"}, owned(t1="a"), unknown="t9"),
            {"t1": "Applied/Applied", "t9": "Waiting/UnknownCluster"},
            id="a name that is no cluster",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="a", t9="a")),
            {"t1": "Applied/Applied", "t9": "Held/ClusterGone"},
            id="a cluster that left",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="a", t2="a"), waiting="t2"),
            {"t1": "Applied/Applied", "t2": "Waiting/WaveNotOpen"},
            id="a wave that is not open",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="a", t3="a"), broken="t2"),
            {
                "t1": "Applied/Applied",
                "t2": "Failed/RenderFailed",
                "t3": "Held/RenderFailed",
            },
            id="a template that cannot be rendered",
        ),
        pytest.param(
            decided({"t1": "a"}, owned(t1="ab", t2="a"), fuse=FEW),
            {"t1": f"Held/{HoldReason.FUSE}", "t2": f"Held/{HoldReason.FUSE}"},
            id="d8 deletions that are held",
        ),
    ],
)
def test_every_cluster_that_is_placed_or_on_record_is_shown(
    decision: Decision, states: dict[str, str]
):
    assert shown(decision, outcome("t1")) == states


def test_a_held_object_is_named_once_and_the_outcome_of_the_work_stays_as_it_was():
    decision = decided({"t1": "a"}, owned(t1="ab", t2="a"), fuse=FEW)
    work = outcome("t1", "ab")
    for _ in range(2):  # as in an interim report, and in the last one
        first, *_ = complete_outcomes(decision, [work], {})
        assert [finding.ref.name for finding in first.findings] == ["b"]
    assert work.state is State.APPLIED
    assert work.findings == []


def test_a_cluster_that_is_skipped_is_shown_as_before():
    decision = decided({"t1": "a", "t2": "a"}, owned(t1="a", t2="a"), only=frozenset({"t1"}))
    before = {"clusters": [{"name": "t2", "state": "Drifted", "reason": "Drifted"}]}
    states = {"t1": "Applied/Applied", "t2": "Drifted/Drifted"}
    assert shown(decision, outcome("t1"), before=before) == states


def test_a_cluster_without_contact_keeps_the_revision_that_it_has():
    decision = decided({"t1": "a"}, owned(t1="a"), applied={"t1": NEW})
    away = ClusterOutcome("t1", State.UNREACHABLE, "Unreachable", inventory=entries("a"))
    complete = complete_outcomes(decision, [away], {})
    assert [one.revision for one in complete] == [NEW]


# --- repairs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "recorded", "corrected"),
    [
        pytest.param({"t1": "a"}, owned(t1="a"), ["t1"], id="all is on record"),
        pytest.param({"t1": "ab"}, owned(t1="a"), [], id="d2 one object is not"),
        pytest.param({"t1": "a"}, owned(t2="a"), [], id="nothing is"),
        pytest.param({"t1": "a"}, owned(t1="ab"), ["t1"], id="one that goes is no obstacle"),
    ],
)
def test_d11_a_repair_corrects_only_what_is_on_record(
    wanted: dict[str, str], recorded: Inventory, corrected: list[str]
):
    work = corrections(draft(wanted), spec(), recorded, {}, may_create=False)
    assert list(work) == corrected
    assert all(not share.may_create and not share.prune for share in work.values())


@each_row(
    ("entry", "names", "state"),
    [
        (State.APPLIED, "ab", State.APPLIED),
        (State.HELD, "ab", State.HELD),
        (State.DELETING, "ab", State.DELETING),
        (State.HELD, "a", State.APPLIED),
    ],
)
def test_a_repair_leaves_pending_deletions_to_the_round_for_all(
    entry: State, names: str, state: State
):
    before = ClusterOutcome("t1", entry)
    work = outcome("t1", names)
    assert as_reported(work, before, draft({"t1": "a"})).state is state
    assert work.state is State.APPLIED


@each_row(
    ("outcomes", "is_polled", "retry"),
    [
        ([outcome("t1")], False, None),
        ([outcome("t1")], True, timedelta(seconds=15)),
        ([outcome("t1", retry=MINUTE)], True, timedelta(seconds=15)),
        ([outcome("t1", retry=LATER)], True, LATER),
        ([outcome("t1", changes=[(Change.UPDATED, ref("a"))])], False, SOON),
    ],
)
def test_d11_what_a_repair_has_changed_is_compared_once_more(
    outcomes: list[ClusterOutcome], is_polled: bool, retry: timedelta | None
):
    assert retry_after(outcomes, is_polled=is_polled) == retry


def test_an_object_that_needs_a_replacement_is_left_to_the_round_for_all():
    outdated = outcome("t1", inventory=entries("a", mark=Mark.OUTDATED))
    assert waits_for_all(owned(t1="a"), [outcome("t1")], None) == []
    assert waits_for_all(owned(t1="a"), [outdated], None) == [SOON]


# --- clean-up ---------------------------------------------------------------------------------

DELETE, ORPHAN = DeletionPolicy.DELETE, DeletionPolicy.ORPHAN


@pytest.mark.parametrize(
    ("kept", "policy", "unjoined", "keeps"),
    [
        pytest.param(outcome("t1", ""), DELETE, "", False, id="nothing is left"),
        pytest.param(outcome("t1"), DELETE, "", True, id="an object is"),
        pytest.param(outcome("t1"), ORPHAN, "", True, id="d5 its mark is not removed yet"),
        pytest.param(
            outcome("t1", state=State.UNREACHABLE), DELETE, "t1", True, id="d7 it is away"
        ),
        pytest.param(outcome("t1", state=State.UNREACHABLE), ORPHAN, "", False, id="and given up"),
        pytest.param(outcome("t1", reason=ALIASED), DELETE, "", True, id="d5 it has two names"),
        pytest.param(outcome("t1", reason=ALIASED), ORPHAN, "", False, id="and given up, too"),
    ],
)
def test_d7_a_cluster_with_objects_keeps_the_finalizer(
    kept: ClusterOutcome, policy: DeletionPolicy, unjoined: str, keeps: bool
):
    assert bool(keep_finalizer([kept], policy, frozenset(unjoined.split()))) is keeps


@each_row(
    ("policy", "unjoined", "keeps"),
    [(DELETE, "", True), (DELETE, "t1", False), (DELETE, "t2", True), (ORPHAN, "", False)],
)
def test_d7_an_absent_cluster_is_given_up_if_that_was_intended(
    policy: DeletionPolicy, unjoined: str, keeps: bool
):
    complete = with_absent(owned(t1="a"), [], "records")
    assert bool(keep_finalizer(complete, policy, frozenset(unjoined.split()))) is keeps


def test_what_is_given_up_is_listed():
    reached = outcome("t1", "", left_behind=[LeftBehind("t1", ref("a"), "Protected")])
    away = outcome("t2", state=State.UNREACHABLE)
    listed = left_behind(owned(t1="a", t2="a", t3="b"), [reached, away])
    assert [(one.cluster, one.ref.name, one.reason) for one in listed] == [
        ("t1", "a", "Protected"),
        ("t2", "a", "NotReached"),
        ("t3", "b", "NotReached"),
    ]
