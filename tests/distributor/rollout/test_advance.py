"""The steps of a rollout without any cluster: pure, and by our own clock (rules D17, D19, D20)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleetbus_distributor.errors import RolloutError
from fleetbus_distributor.hub.rollout_state import (
    GateState,
    Phase,
    RevisionRef,
    RolloutState,
    WavePhase,
    read_state,
    write_state,
)
from fleetbus_distributor.render.place import Member
from fleetbus_distributor.render.rollout_spec import Rollout
from fleetbus_distributor.rollout.advance import Finding, Step, advance, next_look, observe
from fleetbus_distributor.rollout.waves import Scene, follow_placement, start
from support.rows import each_row

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
V1, V2 = RevisionRef(1, "x-1"), RevisionRef(2, "x-2")
NAMES = ("a", "b", "c", "d")


@dataclass
class Desk:
    """A rollout of the second revision, driven by hand."""

    spec: dict[str, Any]
    names: tuple[str, ...] = NAMES
    labels: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    now: datetime = BEGIN
    findings: dict[str, Finding] = field(default_factory=dict[str, Finding])
    held: frozenset[str] = frozenset()
    suspended: frozenset[str] = frozenset()
    state: RolloutState = field(init=False)

    def __post_init__(self) -> None:
        first = start(None, self.rollout, V1, replace(self.scene, matching=self.scene.names))
        assert advance(first, self.step()).phase in (Phase.COMPLETE, Phase.HELD)
        self.state = start(first, self.rollout, V2, self.scene)

    @property
    def rollout(self) -> Rollout:
        return Rollout.model_validate(self.spec)

    @property
    def scene(self) -> Scene:
        members = [Member(name, self.labels.get(name, {})) for name in self.names]
        return Scene(members=members, held=self.held, suspended=self.suspended)

    def step(self, **flags: bool) -> Step:
        current = self.state.current if hasattr(self, "state") else None
        wave = current.name if current else ""
        findings = {(wave, gate): finding for gate, finding in self.findings.items()}
        return Step(self.rollout, self.scene, findings, self.now, **flags)

    def go(self, **flags: bool) -> RolloutState:
        """Take one step, through the stored form."""
        following = follow_placement(self.state, self.scene)
        self.state = advance(following, self.step(**flags))
        stored = {"rollout": write_state(self.state)}
        assert read_state(stored) == self.state
        return self.state

    def look(self, **why: str) -> RolloutState:
        """Find these clusters not ready, and all others of the open wave ready."""
        findings = dict.fromkeys(self.state.updating, "") | why
        self.state = observe(self.state, findings)
        self.go(may_give=False, may_fail=True)
        return self.go()

    def wait(self, **span: float) -> None:
        self.now += timedelta(**span)

    @property
    def given(self) -> str:
        """The clusters that have the second revision."""
        return "".join(name for name in self.names if name not in self.state.behind)

    @property
    def waves(self) -> Mapping[str, str]:
        return {wave.name: wave.phase.value for wave in self.state.waves}


def in_waves(*waves: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"waves": list(waves), **fields}


def by_names(name: str, *clusters: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "clusters": [{"name": cluster} for cluster in clusters], **fields}


def test_d17_a_wave_opens_when_the_one_before_is_healthy():
    desk = Desk(in_waves(by_names("first", "b")))
    desk.go()
    assert (desk.given, desk.waves) == ("b", {"first": "Open", "remaining": "Waiting"})
    desk.look(b="Pod x/y: not ready")
    assert desk.given == "b"
    assert "0 of 1 clusters are ready; b: Pod x/y: not ready" in desk.state.message
    desk.look()
    assert (desk.given, desk.waves["first"]) == ("abcd", "Passed")
    desk.look()
    assert desk.state.phase is Phase.COMPLETE


def test_d17_percentages_are_rounded_up_and_take_what_is_left():
    waves = [{"name": f"p{n}", "percent": n} for n in (1, 30, 90)]
    desk = Desk(in_waves(*waves))
    assert [wave.clusters for wave in desk.state.waves] == [("a",), ("b", "c"), ("d",)]
    many = Desk(in_waves({"name": "first", "percent": 10}), names=tuple("abcdefghijklmnopqrstu"))
    assert len(many.state.waves[0].clusters) == 3


@each_row(("limit", "steps"), [(1, 4), (3, 2), ("25%", 4), ("50%", 2), ("1%", 4)])
def test_d17_max_unavailable_gives_it_to_few_at_a_time(limit: Any, steps: int):
    desk = Desk({"maxUnavailable": limit})
    desk.go()
    taken = 1
    while desk.given != "abcd":
        before = len(desk.given)
        desk.look(**{desk.given[-1]: "not ready"})
        desk.look()
        taken += 1
        assert len(desk.given) > before
    assert taken <= steps


def test_d17_the_limit_of_a_wave_is_its_own():
    desk = Desk(in_waves(by_names("first", "a", "b", maxUnavailable=2), maxUnavailable=1))
    desk.go()
    assert desk.given == "ab"
    desk.look()
    assert desk.given == "abc"


def test_d20_a_wave_without_progress_fails_and_stays_failed():
    desk = Desk({"healthGate": {"timeout": "10m"}, "maxUnavailable": 2})
    desk.go()
    desk.wait(minutes=9)
    desk.look(b="not ready")  # one of two is progress
    desk.wait(minutes=9)
    desk.look(b="not ready", c="not ready")
    assert desk.state.phase is Phase.PROGRESSING
    desk.wait(minutes=2)
    desk.look(b="not ready", c="not ready")
    assert desk.state.phase is Phase.FAILED
    assert "no progress within 600 s (b, c, d)" in desk.state.message
    desk.look()
    assert desk.state.phase is Phase.FAILED
    assert desk.given == "abc"
    assert next_look(desk.state, desk.step()) is None


def test_d20_a_wave_that_is_healthy_too_late_stays_failed():
    desk = Desk(in_waves(by_names("first", "a", "b")))
    desk.go()
    desk.look(a="not ready")
    desk.wait(minutes=11)
    desk.look(a="not ready")
    assert desk.state.phase is Phase.FAILED
    desk.look()  # healthy in the night: nobody is there
    assert desk.state.phase is Phase.FAILED
    assert desk.given == "ab"
    desk.suspended = frozenset("b")  # not the one that it failed on
    desk.go()
    assert desk.state.phase is Phase.FAILED


AWAY = "Unreachable: the cluster does not answer"


def failed_by_an_outage(**spec: Any) -> Desk:
    """A wave of two clusters that has failed because `a` did not answer."""
    desk = Desk({**in_waves(by_names("first", "a", "b")), **spec})
    desk.go()
    desk.look(a=AWAY)
    desk.wait(minutes=11)
    desk.look(a=AWAY)
    assert desk.state.phase is Phase.FAILED
    desk.wait(minutes=11)
    desk.look(a=AWAY)
    assert desk.state.phase is Phase.FAILED
    return desk


def test_d20_a_wave_that_failed_by_an_outage_goes_on_when_the_cluster_is_back():
    desk = failed_by_an_outage()
    desk.look()
    assert (desk.waves["first"], desk.given) == ("Passed", "abcd")
    desk.look()
    assert desk.state.phase is Phase.COMPLETE


def test_d20_after_an_outage_the_revision_has_the_whole_time_limit_and_no_more():
    desk = failed_by_an_outage()
    desk.look(a="not everything is applied")
    assert (desk.state.phase, desk.given) == (Phase.PROGRESSING, "ab")
    desk.wait(minutes=9)
    desk.look(a="Pod x/y: a container waits: ErrImagePull")
    assert desk.state.phase is Phase.PROGRESSING
    desk.wait(minutes=2)
    desk.look(a="Pod x/y: a container waits: ErrImagePull")
    assert desk.state.phase is Phase.FAILED
    desk.look()  # of this revision, not of an outage: a person has to act
    assert desk.state.phase is Phase.FAILED


def test_d20_an_outage_beside_an_unhealthy_cluster_excuses_nothing():
    desk = Desk(in_waves(by_names("first", "a", "b")))
    desk.go()
    desk.wait(minutes=11)
    desk.look(a=AWAY, b="Pod x/y: not ready")
    assert desk.state.phase is Phase.FAILED
    desk.look()
    assert desk.state.phase is Phase.FAILED


def test_d20_a_failed_wave_goes_on_without_the_clusters_that_it_failed_on():
    desk = Desk({"maxUnavailable": 1})
    desk.go()
    desk.wait(minutes=11)
    desk.look(a="unreachable")
    assert desk.state.phase is Phase.FAILED
    desk.suspended = frozenset("a")  # by a person
    desk.go()
    desk.go()
    assert (desk.state.phase, desk.given) == (Phase.PROGRESSING, "ab")
    desk.wait(minutes=9)
    desk.look(b="not ready")
    assert desk.state.phase is Phase.PROGRESSING, "its clock began anew"
    desk.look()
    desk.names = ("a", "b", "d")
    desk.look()
    desk.look()
    assert desk.state.phase is Phase.COMPLETE


def test_d20_a_distributor_that_was_away_looks_before_it_fails_a_wave():
    desk = Desk({})
    desk.go()
    desk.wait(hours=5)
    desk.go()
    assert desk.state.phase is Phase.PROGRESSING
    desk.look()
    assert desk.state.phase is Phase.COMPLETE


def test_d20_pausing_stops_the_clock_and_gives_a_failed_wave_another_chance():
    desk = Desk({}, names=("a",))
    desk.go()
    desk.wait(minutes=11)
    desk.look(a="not ready")
    assert desk.state.phase is Phase.FAILED
    desk.spec = {"paused": True}
    desk.go()
    assert (desk.state.phase, desk.state.waves[0].phase) == (Phase.PAUSED, WavePhase.OPEN)
    stored = write_state(desk.state)
    desk.wait(hours=1)
    desk.look(a="not ready")
    assert write_state(desk.state) == stored
    desk.spec = {}
    desk.go()
    desk.wait(minutes=9)
    desk.look(a="not ready")
    assert desk.state.phase is Phase.PROGRESSING
    desk.look()
    assert desk.state.phase is Phase.COMPLETE


def test_d20_held_deletions_hold_the_rollout_and_its_clock():
    desk = Desk({}, held=frozenset("a"))
    desk.go()
    desk.wait(hours=1)
    desk.look(a="Held: 1 object(s) are not deleted")
    assert desk.state.phase is Phase.HELD
    assert "deletions are held on a" in desk.state.message
    desk.held = frozenset()
    desk.look()
    assert desk.state.phase is Phase.COMPLETE


def test_d19_a_vote_passes_or_fails_a_wave_and_may_change():
    desk = Desk(in_waves(by_names("first", "a"), gates=[{"name": "t"}]))
    desk.go()
    desk.look()
    assert desk.state.message.startswith("wave first: gate t: no vote yet on ")
    assert next_look(desk.state, desk.step()) == timedelta(seconds=30)
    desk.findings = {"t": Finding(GateState.FAILED, "p99 is 3 s")}
    desk.go()
    assert (desk.state.phase, desk.given) == (Phase.FAILED, "a")
    assert desk.state.message == "wave first: gate t: p99 is 3 s"
    desk.findings = {}  # the message expired
    desk.go()
    assert desk.state.phase is Phase.FAILED
    desk.findings = {"t": Finding(GateState.PASSED)}
    desk.go()
    desk.findings = {}
    desk.go()
    assert (desk.given, desk.waves["first"]) == ("abcd", "Passed")


def test_d19_a_vote_that_came_early_counts_and_health_still_matters():
    desk = Desk(in_waves(by_names("first", "a"), gates=[{"name": "t"}]))
    desk.findings = {"t": Finding(GateState.PASSED)}
    desk.go()
    desk.go()
    assert desk.given == "a"
    desk.findings = {}
    desk.look()
    assert desk.given == "abcd"


def test_d19_votes_on_one_wave_do_not_pass_the_next():
    desk = Desk(in_waves(by_names("first", "a"), gates=[{"name": "t"}]))
    desk.go()
    desk.findings = {"t": Finding(GateState.PASSED)}
    desk.go()
    desk.findings = {}
    desk.look()
    desk.look()
    assert desk.waves == {"first": "Passed", "remaining": "Open"}


def test_d20_a_gate_that_nobody_votes_on_waits_or_fails_in_time():
    desk = Desk({"gates": [{"name": "t", "timeout": "1h"}]})
    desk.go()
    desk.wait(minutes=5)
    desk.look()
    desk.wait(minutes=59)
    desk.go()
    assert desk.state.phase is Phase.PROGRESSING
    desk.wait(minutes=2)
    desk.go()
    assert desk.state.phase is Phase.FAILED
    assert "too late: no vote yet on" in desk.state.message
    desk.findings = {"t": Finding(GateState.PASSED)}
    desk.go()
    assert desk.state.phase is Phase.COMPLETE


def test_the_gate_quiet_passes_a_period_after_the_last_trouble():
    desk = Desk({"gates": [{"name": "quiet", "period": "5m"}]})
    desk.go()
    assert desk.state.waves[0].gate("quiet").message == "waits until the wave is healthy"
    desk.findings = {"quiet": Finding(GateState.PENDING, "", {"a": "old"}, is_news=False)}
    desk.look()
    assert next_look(desk.state, desk.step()) == timedelta(seconds=15)
    desk.wait(minutes=4)
    news = Finding(GateState.PENDING, "last trouble: a: Pod p: BackOff", {"a": "new"}, is_news=True)
    desk.findings = {"quiet": news}
    desk.go()
    assert "last trouble: a: Pod p: BackOff" in desk.state.message
    desk.findings = {"quiet": Finding(GateState.PENDING, "", {"a": "new"})}
    desk.wait(minutes=4)
    desk.go()
    assert desk.state.phase is Phase.PROGRESSING
    desk.wait(minutes=2)
    desk.go()
    assert desk.state.phase is Phase.COMPLETE


def test_the_gate_quiet_waits_while_a_cluster_cannot_be_read():
    desk = Desk({"gates": [{"name": "quiet", "period": "1s"}]})
    desk.go()
    desk.findings = {"quiet": Finding(GateState.PENDING, "a: cannot be read")}
    for _ in range(3):
        desk.look()
        desk.wait(minutes=1)
    assert desk.state.message.endswith("gate quiet: a: cannot be read")
    assert desk.state.phase is Phase.PROGRESSING


def test_d17_a_cluster_that_turns_unhealthy_before_the_vote_has_its_whole_time_limit():
    desk = Desk({"gates": [{"name": "t"}]})
    desk.go()
    desk.look()
    desk.wait(hours=2)
    desk.state = observe(desk.state, {"a": "Pod p: not ready"})
    desk.go(may_give=False, may_fail=True)
    assert desk.state.phase is Phase.PROGRESSING
    desk.wait(minutes=11)
    desk.look(a="Pod p: not ready")
    assert desk.state.phase is Phase.FAILED


def test_d17_waves_that_are_defined_anew_pass_their_gates_again():
    desk = Desk(in_waves(by_names("first", "a", "b"), gates=[{"name": "t"}]))
    desk.go()
    desk.look(b="not ready")
    desk.spec = in_waves(by_names("other", "b"), gates=[{"name": "t"}])
    desk.state = start(desk.state, desk.rollout, V2, desk.scene)
    desk.go()
    assert (desk.given, desk.waves) == ("ab", {"other": "Open", "remaining": "Waiting"})
    assert desk.state.previous == 1
    assert set(desk.state.updating) == {"b"}


def test_d17_a_wave_that_loses_all_its_clusters_holds():
    desk = Desk(in_waves(by_names("first", "a")))
    desk.go()
    desk.names = ("b", "c", "d")
    desk.go()
    assert desk.state.phase is Phase.HELD
    assert desk.given == ""


def test_d17_a_suspended_cluster_is_not_waited_for():
    desk = Desk({"maxUnavailable": 1}, suspended=frozenset("a"))
    desk.go()
    assert desk.given == "ab"
    desk.look()
    desk.look()
    desk.look()
    assert desk.state.phase is Phase.COMPLETE


def test_what_nobody_wrote_is_no_state():
    half: dict[str, Any] = {"revision": 1, "name": "a", "phase": "No"}
    every: list[Any] = [{}, [], {"revision": "x"}, half]
    for wrong in every:
        with pytest.raises(RolloutError):
            read_state({"rollout": wrong})
