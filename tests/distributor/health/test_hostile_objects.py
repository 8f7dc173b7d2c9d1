"""Objects that no API server should answer: their health is known, or refused, but nothing ends.

Every reader of a member's objects is tried with every JSON in every field that it reads.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbus.kube.client import KubeClient
from fleetbus.kube.json_fields import MOST_READ
from fleetbus.kube.trees import read_tree
from fleetbus_distributor.health.cluster_health import ClusterHealth, StatusRules
from fleetbus_distributor.health.feedback import Feedback
from fleetbus_distributor.health.health import KINDS, health_of
from fleetbus_distributor.health.pod_failures import pod_failure
from fleetbus_distributor.health.result import HealthState
from fleetbus_distributor.health.rules import HealthRule
from fleetbus_distributor.hub.entries import write_entry
from fleetbus_distributor.rollout import quiet
from fleetbus_distributor.targets.outcome import ClusterOutcome
from support.calls import counted_calls
from support.full import examples
from support.objects import config_map
from support.rigs.distributor import Rig, distributor_rig
from support.rigs.rollout import EVERYWHERE, rollout, rounds, values
from support.rows import each_row

FIELDS = """
metadata name uid generation status conditions type reason message observedGeneration
phase replicas updatedReplicas availableReplicas readyReplicas spec containerStatuses
state waiting initContainerStatuses lastState terminated exitCode restartCount
involvedObject series count currentRevision updateRevision updateStrategy rollingUpdate
partition desiredNumberScheduled loadBalancer ingress currentHealthy desiredHealthy kind
""".split()  # noqa: SIM905
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["True", "False", "Ready", "Progressing", "Failed", "web", "x" * 5000])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=25,
)
STARTED_AGAIN = {"containerStatuses": [{"name": "c", "restartCount": 1}]}
OBJECTS = st.dictionaries(
    st.sampled_from(["metadata", "spec", "status", "count"]), JSON, max_size=4
)
RULE = HealthRule.model_validate(
    {
        "apiVersion": "example.org/v1",
        "kind": "Database",
        "observedGeneration": True,
        "degraded": [{"path": ".status.conditions[?(@.type=='Ready')].status", "in": ["False", 1]}],
        "healthy": [{"path": ".status.replicas", "atLeast": 2}],
    }
)
FEEDBACK = Feedback.model_validate(
    {
        "apiVersion": "example.org/v1",
        "kind": "Database",
        "fields": [
            {"name": "a", "path": ".status.phase"},
            {"name": "b", "path": ".status.conditions[0].message"},
            {"name": "c", "path": ".status.replicas"},
        ],
    }
)
TYPES = [*KINDS, ("example.org", "Database"), ("example.org", "Other")]


@given(obj=OBJECTS, kind=st.sampled_from(TYPES))
@settings(max_examples=examples(400))
def test_d21_the_health_of_any_object_is_known_and_can_be_stored(
    obj: dict[str, Any], kind: tuple[str, str]
):
    version = f"{kind[0]}/v1" if kind[0] else "v1"
    rules = StatusRules([RULE], [FEEDBACK])
    read = {**obj, "apiVersion": version, "kind": kind[1]}
    health, chosen = rules.health_of(read), rules.collect(read)
    cluster_health = ClusterHealth().with_object("x", health, chosen)
    outcome = ClusterOutcome("t1", health=cluster_health)
    stored = orjson.dumps(write_entry(outcome, 1))
    assert len(stored) < 3000
    assert health.state in HealthState


@given(objects=st.lists(OBJECTS | JSON, max_size=4))
@settings(max_examples=examples(200))
def test_d17_any_events_and_pods_are_read(objects: list[Any]):
    for read in (quiet.warnings, quiet.restarts):
        for key, sentence in read(objects, {"web", "x", ""}):
            orjson.dumps([key, sentence])


@each_row(
    ("raw", "expected"),
    [
        (rb'["\ud800"]', ["\ufffd"]),
        (rb'{"\udfff": {"a": ["x\ud83dy"]}}', {"\ufffd": {"a": ["x\ufffdy"]}}),
        (rb'["\ud83d\ude00", "\ud800"]', ["\U0001f600", "\ufffd"]),
    ],
)
def test_half_a_surrogate_pair_is_replaced_as_in_go(raw: bytes, expected: Any):
    """A string with one can be read, and stored nowhere: the status of all clusters would fail."""
    assert read_tree(raw) == expected
    assert json.loads(orjson.dumps(read_tree(raw))) == expected


async def test_d21_a_megabyte_of_a_controller_enters_the_status_cut(rig: Rig):
    claim = config_map(k="v1")
    claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    claim["spec"] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    del claim["data"]
    rig.create(template=claim, placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    claims = "v1/persistentvolumeclaims"
    status = {"phase": "x" * 300_000}
    rig.clusters["t1"].update_status(claims, rig.get("t1", claims, "m") | {"status": status})
    await rig.reconcile()
    stored = json.dumps(rig.resource()["status"])
    assert "xxxx" in stored
    assert len(stored) < 10_000


POD = {"metadata": {"name": "m-1", "uid": "u"}}
ODD_PODS: list[Any] = [
    POD | {"status": {"containerStatuses": [{"name": "c", "restartCount": "many"}]}},
    POD | {"status": {"containerStatuses": "x"}},
    {"metadata": "m-1"},
    "m-1",
    None,
]


@pytest.mark.parametrize("answer", [*ODD_PODS, KeyError("a bug of ours")], ids=str)
async def test_d17_odd_pods_of_one_member_end_no_round(
    answer: Any, monkeypatch: pytest.MonkeyPatch
):
    original = KubeClient.list

    async def odd(self: KubeClient, resource: str, *args: Any, **options: Any) -> Any:
        if self.cluster == "t1" and resource == "v1/pods":
            if isinstance(answer, Exception):
                raise answer
            return [answer]
        return await original(self, resource, *args, **options)

    gates = [{"name": "quiet", "period": "1h"}]
    waves = [{"name": "first", "clusters": [{"name": "t1"}], "gates": gates}]
    async with distributor_rig("t1", "t2") as rig:
        rig.create(template=config_map(k="v1"), placement=EVERYWHERE, rollout={})
        await rounds(rig)
        monkeypatch.setattr(KubeClient, "list", odd)
        rig.edit(template=config_map(k="v2"), rollout={"waves": waves})
        await rounds(rig, 4)
        assert values(rig)["t1"] == "v2"
        assert rollout(rig)["waves"][0]["phase"] == "Open"
        if isinstance(answer, Exception):
            assert "t1: its Warning events and Pods cannot be read" in rollout(rig)["message"]
        rig.edit(placement={"clusters": [{"name": "t1"}, {"name": "t4"}]})
        await rounds(rig, 2)
        assert values(rig)["t2"] == ""


@each_row("kind", [("", "Pod"), ("apps", "Deployment"), ("batch", "Job"), ("example.org", "Other")])
def test_the_health_of_any_object_takes_bounded_work(kind: tuple[str, str]):
    """Statuses of 450,000 containers stalled the rounds of all clusters for a second."""
    group, name = kind
    empty: dict[str, Any] = {}
    elements = [empty] * 10 * MOST_READ
    status: dict[str, Any] = {
        "conditions": elements,
        "phase": "Running",
        "containerStatuses": elements,
    }
    status["initContainerStatuses"] = elements
    version = f"{group}/v1" if group else "v1"
    obj = {"apiVersion": version, "kind": name, "metadata": {"name": "web"}, "status": status}
    with counted_calls() as calls:
        health_of(obj)
        pod_failure([obj])
        list(quiet.restarts([obj], {"web"}))
    assert calls.count < 150 * MOST_READ


def test_trouble_of_ours_is_found_among_many_names_with_little_work():
    names = {f"web-{number}" for number in range(1_000)}
    pods = [{"metadata": {"name": f"other-{number}"}} for number in range(1_000)]
    pods += [{"metadata": {"name": "web-7-x-y", "uid": "u"}, "status": STARTED_AGAIN}]
    pods += [{"metadata": {"name": name}, "status": STARTED_AGAIN} for name in ("web-", "web", "")]
    with counted_calls() as calls:
        news = list(quiet.restarts(pods, names))
    assert [text for _, text in news] == ["Pod web-7-x-y: restarted"]
    assert calls.count < 50 * len(pods)
