"""Each check of the campaign of distributors finds what it is for, and nothing else (V6)."""

from __future__ import annotations

import copy
import subprocess
from math import inf
from pathlib import Path
from typing import Any

import orjson
import pytest

from faults.distributors.call_checks import check_calls
from faults.distributors.desired import Place, desired
from faults.distributors.history import History, read_history
from faults.distributors.kill_points import POINTS, name_of
from faults.distributors.main import command_of, plans_of, read_arguments
from faults.distributors.state_checks import check_state
from faults.distributors.write_checks import (
    check_deletions,
    check_excuses,
    check_marks,
    check_strangers,
    check_waves,
)
from fleetbus.kube.requests import Call
from support.processes.programs import module

Json = dict[str, Any]
_RESOURCES = "/apis/fleetbus.dev/v1alpha1/namespaces/a/multiclusterresources"
OURS, PERSON = "fleetbus-distributor", ""
CLUSTERS = {name: {"all": "yes"} for name in ("t1", "t2", "t3", "t4")}
EVERYWHERE = {"clusterSelector": {"matchLabels": {"all": "yes"}}}


def at(*names: str) -> Json:
    return {"clusters": [{"name": name} for name in names]}


def template(name: str = "m0-a", **data: str) -> Json:
    return {"kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def copy_of(name: str = "m0-a", *, owner: str = "u0", target: str = "t1", uid: str = "") -> Json:
    mark = {"kind": "MultiClusterResource", "uid": owner, "target": target, "name": "m0"}
    mark |= {"apiVersion": "fleetbus.dev/v1alpha1", "clusterName": "hub", "hub": "h"}
    metadata: Json = {"name": name, "uid": uid or f"{target}/{name}"}
    if owner:
        metadata["labels"] = {"fleetbus.dev/owner-uid": owner}
        metadata["annotations"] = {"fleetbus.dev/owner": orjson.dumps(mark).decode()}
    return {"metadata": metadata, "data": {"v": "1"}}


class Log:
    """An audit log that is written line by line, a minute apart."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.jsonl"
        self._lines: list[bytes] = []
        self.t = 0.0

    def write(self, cluster: str, kind: str, resource: str, obj: Json, by: str = PERSON) -> None:
        self.t += 60.0
        line = {"t": self.t, "cluster": cluster, "type": kind, "resource": resource, "agent": by}
        self._lines.append(orjson.dumps(line | {"object": copy.deepcopy(obj)}))

    def fleet(self) -> None:
        for name, labels in CLUSTERS.items():
            self.write("hub", "ADDED", "clusters", {"metadata": {"name": name, "labels": labels}})

    def relabel(self, name: str) -> None:
        self.write("hub", "MODIFIED", "clusters", {"metadata": {"name": name, "labels": {}}})

    def resource(self, placement: Json, name: str = "m0", **more: Any) -> None:
        spec = {"templates": [template(v="1")], "placement": placement}
        obj = {"metadata": {"name": name, "uid": "u0", **more}, "spec": spec}
        self.write("hub", "ADDED", "multiclusterresources", obj)

    def applied(self, target: str, **more: Any) -> None:
        self.write(target, "ADDED", "configmaps", copy_of(target=target, **more), OURS)

    def deleted(self, target: str, **more: Any) -> None:
        self.write(target, "DELETED", "configmaps", copy_of(target=target, **more), OURS)

    def read(self, until: float = inf) -> History:
        self._path.write_bytes(b"".join(line + b"\n" for line in self._lines))
        return read_history(self._path, until)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    opened = Log(tmp_path)
    opened.fleet()
    return opened


def rules(violations: Any) -> list[str]:
    return [violation.rule for violation in violations]


# --- what was done ------------------------------------------------------------------------------


def test_a_phase_that_is_checked_again_ends_where_it_ended(log: Log):
    log.resource(at("t1"))
    log.applied("t1")
    end = log.t
    log.deleted("t1")
    assert rules(check_deletions(log.read())) == ["D1 deletion"]
    assert rules(check_deletions(log.read(until=end))) == []


def test_a_deletion_that_an_edit_requests_is_fine(log: Log):
    log.resource(at("t1", "t2"))
    log.applied("t1")
    log.resource(at("t2"))
    log.deleted("t1")
    assert rules(check_deletions(log.read())) == []


def test_a_deletion_of_what_was_always_wanted(log: Log):
    log.resource(at("t1", "t2"))
    log.applied("t1")
    log.deleted("t1")
    assert rules(check_deletions(log.read())) == ["D1 deletion"]


def test_a_deletion_with_its_resource_is_fine(log: Log):
    log.resource(at("t1"))
    log.applied("t1")
    log.resource(at("t1"), deletionTimestamp="now")
    log.deleted("t1")
    assert rules(check_deletions(log.read())) == []


def test_one_relabelled_cluster_of_four_is_within_the_limits_and_two_are_not(log: Log):
    log.resource(EVERYWHERE)
    for name in CLUSTERS:
        log.applied(name)
    log.relabel("t1")
    log.deleted("t1")
    assert rules(check_deletions(log.read())) == []
    log.relabel("t2")
    log.deleted("t2")
    assert set(rules(check_deletions(log.read()))) == {"D8 fuse"}


def test_what_has_a_template_error_must_not_be_deleted(log: Log):
    metadata = {"name": "m0", "uid": "u0"}
    spec = {"templates": [template(v="${cluster.labels.region}")], "placement": at("t1")}
    log.write("hub", "ADDED", "multiclusterresources", {"metadata": metadata, "spec": spec})
    log.applied("t1")
    log.deleted("t1")
    assert rules(check_deletions(log.read())) == ["D1 deletion"]


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
def test_a_stranger_that_is_hurt(log: Log, kind: str):
    stranger = copy_of(owner="", uid="s")
    log.write("t1", "ADDED", "configmaps", stranger)
    log.write("t1", kind, "configmaps", stranger, OURS)
    assert rules(check_strangers(log.read())) == ["D4 stranger"]


def test_a_copy_whose_mark_a_person_removed_is_no_stranger(log: Log):
    log.applied("t1", uid="c")
    log.write("t1", "MODIFIED", "configmaps", copy_of(owner="", uid="c"))
    log.write("t1", "MODIFIED", "configmaps", copy_of(uid="c"), OURS)
    assert rules(check_strangers(log.read())) == []


def test_a_write_to_the_wrong_cluster(log: Log):
    log.write("t2", "ADDED", "configmaps", copy_of(target="t1"), OURS)
    assert rules(check_marks(log.read())) == ["W13 wrong cluster"]


def test_a_wave_that_opens_without_a_vote(log: Log):
    log.resource(at("t1", "t2"), name="w0")
    log.applied("t1")
    log.applied("t2")
    history = log.read()
    assert rules(check_waves(history, [])) == ["D17 wave"]
    vote = {"kind": "vote", "name": "w0", "t": log.t - 30}
    assert rules(check_waves(history, [vote])) == []


def test_an_orphan_is_excused_by_a_restore_only(log: Log):
    log.applied("t1")
    state = {"orphans": [["t1", "ConfigMap", "m0-a"]]}
    assert rules(check_excuses(log.read(), state)) == ["D2 orphan"]
    log.write("hub", "RESTORED", "", {})
    assert rules(check_excuses(log.read(), state)) == []


# --- what there is ------------------------------------------------------------------------------


def state(**more: Any) -> Json:
    resource = {
        "name": "m0",
        "uid": "u0",
        "spec": {"templates": [template(v="1")], "placement": at("t1")},
        "generation": 1,
        "observed": 1,
        "isDeleting": False,
        "held": None,
        "states": {"t1": "Applied/Applied"},
        "inventory": [["t1", "ConfigMap", "m0-a"]],
    }
    obj = {"cluster": "t1", "kind": "ConfigMap", "name": "m0-a", "owner": "u0", "target": "t1"}
    return {
        "clusters": CLUSTERS,
        "resources": [resource | more],
        "objects": [obj | {"data": {"v": "1"}}],
        "orphans": [],
    }


def test_a_sound_state_has_no_violation():
    assert rules(check_state(state())) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"observed": 0}, "D1 stall"),
        ({"isDeleting": True}, "D7 stuck"),
        ({"inventory": []}, "D2 record"),
        ({"inventory": [["t1", "ConfigMap", "m0-a"], ["t2", "ConfigMap", "m0-a"]]}, "D2 record"),
        ({"spec": {"templates": [template(v="2")], "placement": at("t1")}}, "D13 drift"),
        ({"spec": {"templates": [template(v="1")], "placement": at("t1", "t2")}}, "D3 missing"),
        ({"spec": {"templates": [template("x")], "placement": at("t2")}}, "D5 surplus"),
        ({"uid": "u1"}, "D6 conflict"),
    ],
)
def test_each_deviation_is_found(change: Json, rule: str):
    assert rule in rules(check_state(state(**change)))


def test_nothing_is_pruned_where_something_could_not_be_applied():
    spec = {"templates": [template("x")], "placement": at("t1")}
    bad_state = state(spec=spec, states={"t1": "Conflict/NotOurs"})
    assert "D5 surplus" not in rules(check_state(bad_state))


def test_an_inventory_that_cannot_be_read_is_a_violation():
    assert rules(check_state({"unreadable": "a chunk is missing"})) == ["D2 unreadable"]


def test_orphans_are_exactly_those_that_are_reported():
    bad_state = state()
    bad_state["objects"].append(bad_state["objects"][0] | {"cluster": "t2", "target": "t2"})
    assert rules(check_state(bad_state)) == ["D7 orphan"]
    bad_state["orphans"] = [["t2", "ConfigMap", "m0-a"]]
    assert rules(check_state(bad_state)) == []
    bad_state["objects"].pop()
    assert rules(check_state(bad_state)) == ["D7 orphan"]


def test_what_is_desired_is_worked_out_per_cluster():
    spec = {
        "templates": [template(where="${cluster.name}")],
        "placement": {**EVERYWHERE, "exclude": [{"name": "t4"}]},
    }
    clusters = CLUSTERS | {"t2": {}}
    computed = desired(spec, clusters)
    assert computed.objects[Place("t1", "ConfigMap", "m0-a")] == {"where": "t1"}
    assert {place.cluster for place in computed.objects} == {"t1", "t3"}
    spec["templates"] = [template(region="${cluster.labels.region}")]
    assert desired(spec, clusters).unrendered == {"t1", "t3"}


# --- calls through agents -----------------------------------------------------------------------


def note(call: str, agent: str, side: str = "before") -> Json:
    return {"call": call, "process": agent, "side": side, "write": "PATCH agent/configmaps"}


def test_a_call_that_two_agents_pass_on_is_found():
    by_distributor = {"process": "d1", "side": "before", "write": "PATCH target/configmaps"}
    once = [by_distributor, note("d.1", "a"), note("d.1", "a", "after")]
    assert rules(check_calls([*once, by_distributor, note("d.2", "b")])) == []
    (violation,) = check_calls([*once, note("d.1", "b")])
    assert violation.text == "PATCH agent/configmaps of call d.1 was sent 2 times"


# --- the command, and the points ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "place", "point"),
    [
        (Call("PUT", f"{_RESOURCES}/x/status"), "hub", "PUT hub/multiclusterresources/status"),
        (Call("PATCH", "/api/v1/namespaces/a/configmaps/x"), "target", "PATCH target/configmaps"),
        (Call("DELETE", "/api/v1/namespaces/a/configmaps/x"), "agent", "DELETE agent/configmaps"),
        (Call("POST", "/api/v1/namespaces/a/events"), "hub", "POST hub/events"),
    ],
)
def test_a_write_has_the_name_of_a_point(call: Call, place: str, point: str):
    assert name_of(place, call) == point
    assert f"before {point}" in POINTS


def test_a_seed_is_repeated_by_one_command():
    options = (
        "--kills 3",
        "--kills 0",
        "--stops-only",
        "--steps protected,crashed",
        "--mutation no-limits",
    )
    for words in options:
        (plan,) = plans_of(read_arguments(["--seed", "7", *words.split()]))
        again = command_of(plan, cut=False).split()
        assert again[:3] == ["python", "tests/run.py", "faults.distributors"]
        assert plans_of(read_arguments(again[3:])) == [plan]


@pytest.mark.parametrize("wrong", ["--seeds=x", "--steps=nonsense", "--mutation=nonsense"])
def test_what_makes_no_sense_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        read_arguments([wrong])
    assert wrong.partition("=")[0] in capsys.readouterr().err


@pytest.mark.slow
def test_the_waits_of_the_product_are_where_the_campaign_shortens_them():
    # In a process of its own: what is patched stays patched.
    ended = subprocess.run(
        module("scripts.shortened_waits"), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
