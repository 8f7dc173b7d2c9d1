"""Generated clusters: repeatable, real to the server, at rest for the controllers."""

from __future__ import annotations

import base64
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from random import Random
from typing import Any

import orjson
import pytest

from emulator.support.kube_calls import Calls
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.controllers import simulate
from fleetbus_emulator.controllers.namespace_defaults import CERTIFICATE, ROOT_CERTIFICATE
from fleetbus_emulator.generate import Population, fill
from fleetbus_emulator.generate.objects.databases import DATABASES, DEFINITIONS
from fleetbus_emulator.generate.objects.infrastructure import SEED_LABEL
from fleetbus_emulator.generate.objects.managed_fields import ManagedFields
from fleetbus_emulator.generate.objects.naming import Naming
from fleetbus_emulator.generate.objects.population import UNLIMITED

JsonObject = dict[str, Any]
NOW = datetime(2026, 3, 1, tzinfo=UTC)
CANARY = "canary-7f3a"


def _made(objects: int, **options: Any) -> list[tuple[str, JsonObject]]:
    return list(Population(objects=objects, now=NOW, **options))


@pytest.fixture(scope="module")
def many() -> list[tuple[str, JsonObject]]:
    """Enough of them for statements about their mix; nobody changes them."""
    return _made(3_000)


def _ids(objects: list[tuple[str, JsonObject]]) -> list[tuple[str, str, str]]:
    return [(gvr, obj["metadata"]["name"], obj["metadata"]["uid"]) for gvr, obj in objects]


def _size(obj: JsonObject) -> int:
    return len(orjson.dumps(obj))


def _path(gvr: str, obj: JsonObject) -> str:
    *group, version, plural = gvr.split("/")
    root = f"/apis/{group[0]}/{version}" if group else f"/api/{version}"
    namespace = obj["metadata"].get("namespace")
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def test_the_same_seed_makes_the_same_objects_byte_for_byte():
    first, second = _made(600, seed=3), _made(600, seed=3)
    assert orjson.dumps(first) == orjson.dumps(second)


def test_another_seed_or_another_cluster_makes_other_objects():
    here = {uid for _, _, uid in _ids(_made(300, seed=3, cluster="a"))}
    for others in (_made(300, seed=4, cluster="a"), _made(300, seed=3, cluster="b")):
        assert here.isdisjoint(uid for _, _, uid in _ids(others))


@pytest.mark.parametrize("count", [1, 2, 7, 40, 123, 1_000])
def test_there_are_exactly_as_many_objects_as_asked_for(count: int):
    objects = _made(count)
    keys = {(gvr, o["metadata"].get("namespace"), o["metadata"]["name"]) for gvr, o in objects}
    assert len(objects) == len(keys) == count
    assert len({uid for _, _, uid in _ids(objects)}) == count


def test_no_two_children_of_an_owner_get_the_same_suffix():
    naming = Naming(Random(1), (), NOW)
    suffixes = list(islice(naming.suffixes(length=2), 600))
    assert len(set(suffixes)) == 600


def test_no_objects_and_unknown_types_are_refused():
    with pytest.raises(ValueError, match="at least one object"):
        _made(0)
    with pytest.raises(ValueError, match=r"only: \['v1/nodes'\] are none of"):
        _made(5, only=["v1/nodes"])


@pytest.mark.parametrize("gvr", list(UNLIMITED))
def test_any_number_of_one_type_can_be_had(gvr: str):
    counts = Counter(resource for resource, _ in _made(25, only=[gvr]))
    assert counts.pop(gvr) == 25
    assert set(counts) - {"v1/namespaces"} == ({DEFINITIONS} if gvr == DATABASES else set())


def test_objects_whose_owners_are_not_made_stand_alone():
    alone = _made(60, only=["v1/pods"])
    assert not any("ownerReferences" in orjson.dumps(obj).decode() for _, obj in alone)
    owned = _made(300, only=["v1/pods", "apps/v1/replicasets"])
    uids = {obj["metadata"]["uid"] for _, obj in owned}
    owners = [o["uid"] for _, obj in owned for o in obj["metadata"].get("ownerReferences", [])]
    assert len(owners) > 50
    assert uids.issuperset(owners)


def test_pods_have_four_to_six_kilobytes_most_of_them():
    sizes = sorted(_size(obj) for gvr, obj in _made(800, only=["v1/pods"]) if gvr == "v1/pods")
    assert sizes[8] >= 4_096
    assert sizes[600] <= 6_144
    assert sizes[-1] <= 8_192


def test_the_mix_is_that_of_a_cluster_and_some_settings_are_large(
    many: list[tuple[str, JsonObject]],
):
    counts = Counter(gvr for gvr, _ in many)
    assert 0.3 < counts["v1/pods"] / 3_000 < 0.5
    assert len(counts) >= 20
    assert max(_size(obj) for gvr, obj in many if gvr == "v1/configmaps") > 20_000
    containers = Counter(len(o["spec"]["containers"]) for g, o in many if g == "v1/pods")
    assert containers[1] > containers[2] > containers[3] > 0


def test_few_namespaces_hold_most(many: list[tuple[str, JsonObject]]):
    placed = Counter(o["metadata"]["namespace"] for g, o in many if g == "v1/pods")
    (_, most), (_, least) = placed.most_common()[0], placed.most_common()[-1]
    assert most > 5 * least


def test_every_object_is_as_the_server_would_have_stored_it():
    cluster = Cluster("alpha")
    fill(cluster, objects=900, seed=2, hostile=True, now=NOW)
    calls = Calls(cluster)
    counts: Counter[str] = Counter()
    for gvr, obj in _made(900, seed=2, hostile=True, cluster="alpha"):
        stored = cluster.get(gvr, obj["metadata"].get("namespace"), obj["metadata"]["name"])
        assert stored is not None
        if any(c in obj["metadata"]["name"] for c in "/%?#"):
            outcome = cluster.update(gvr, stored)
        else:
            outcome = calls.put(f"{_path(gvr, obj)}/{obj['metadata']['name']}", stored).document
        assert outcome == stored, gvr
        counts[gvr] += 1
    assert len(counts) >= 20


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_controllers_find_nothing_to_do(seed: int):
    cluster = Cluster("alpha")
    fill(cluster, objects=1_000, seed=seed)
    for namespace in ("default", "kube-node-lease", "kube-public", "kube-system"):
        cluster.create("v1/serviceaccounts", {"metadata": {"name": "default"}}, namespace)
        root = {"metadata": {"name": ROOT_CERTIFICATE}, "data": {"ca.crt": CERTIFICATE}}
        cluster.create("v1/configmaps", root, namespace)
    before = cluster.resource_version
    async with simulate(cluster, nodes=0) as (simulator,):
        await simulator.settled()
    assert cluster.resource_version == before, list(cluster.history)[-3:]


def test_some_workloads_fail_and_some_pods_have_ended(many: list[tuple[str, JsonObject]]):
    pods = [obj for gvr, obj in many if gvr == "v1/pods"]
    phases = Counter(pod["status"]["phase"] for pod in pods)
    assert phases["Running"] > 5 * phases["Succeeded"] > 0
    waiting = [
        status["state"]["waiting"]["reason"]
        for pod in pods
        for status in pod["status"]["containerStatuses"]
        if "waiting" in status["state"]
    ]
    assert set(waiting) == {"CrashLoopBackOff"}


def test_a_pod_is_ready_if_its_containers_run(many: list[tuple[str, JsonObject]]):
    states = Counter[tuple[bool, bool, bool]]()
    for pod in (obj for gvr, obj in many if gvr == "v1/pods"):
        status = pod["status"]
        [ready] = [c["status"] == "True" for c in status["conditions"] if c["type"] == "Ready"]
        for container in status["containerStatuses"]:
            states[ready, container["ready"], "running" in container["state"]] += 1
    assert set(states) == {(True, True, True), (False, False, False)}


def test_every_secret_holds_the_canary_and_nothing_else_does():
    encoded = base64.b64encode(CANARY.encode())
    objects = _made(800, canary=CANARY)
    holding = Counter(gvr for gvr, obj in objects if encoded in orjson.dumps(obj))
    assert holding == {"v1/secrets": sum(gvr == "v1/secrets" for gvr, _ in objects)}


def test_hostile_objects_are_accepted_by_the_server():
    cluster, names = Cluster("alpha"), set[str]()
    plain = {uid for _, _, uid in _ids(_made(900))}
    for gvr, obj in _made(900, hostile=True):
        if gvr == "v1/namespaces":
            cluster.restore([(gvr, obj)])
        if obj["metadata"]["uid"] in plain or "example.com/text" not in str(obj["metadata"]):
            continue
        created = cluster.create(gvr, {k: v for k, v in obj.items() if k != "status"})
        names.add(created["metadata"]["name"])
    assert any(":" in name for name in names)
    assert any("*" in name or ">" in name for name in names)
    assert max(map(len, names)) > 240


def test_the_books_are_those_that_the_server_keeps():
    cluster = Cluster("alpha")
    resources = ("v1/configmaps", "apps/v1/deployments", "platform.example.com/v1/databases")
    for gvr, obj in _made(400):
        if gvr in ("v1/namespaces", DEFINITIONS):
            cluster.restore([(gvr, obj)])
        entries = obj["metadata"].pop("managedFields", [])
        if gvr in resources and entries:
            [creator] = [entry for entry in entries if "subresource" not in entry]
            created = cluster.create(gvr, obj, manager=creator["manager"])
            assert created["metadata"]["managedFields"][0]["fieldsV1"] == creator["fieldsV1"]


def test_the_books_of_containers_that_are_gone_are_not_those_of_others():
    books = ManagedFields()
    for number in range(50):  # lists that come where the last one was in memory
        spec = {"containers": [{"name": f"c{number}"}]}
        tree = books.fields({"apiVersion": "v1", "kind": "Pod", "spec": spec}, "spec")
        assert list(tree["f:spec"]["f:containers"]) == [f'k:{{"name":"c{number}"}}']


def test_a_second_filling_adds_others():
    cluster = Cluster("alpha")
    for _ in range(2):
        fill(cluster, objects=500, seed=7)
    uids = [c.uid for c in cluster.history]
    assert len(uids) == len(set(uids)) == 1_006


def test_a_seed_may_be_negative_and_is_another():
    cluster = Cluster("alpha")
    for seed in (-7, 7, -7):
        fill(cluster, objects=60, seed=seed)
    namespaces = cluster.list("v1/namespaces")
    seeds = {namespace["metadata"].get("labels", {}).get(SEED_LABEL) for namespace in namespaces}
    assert seeds == {None, "minus-7", "7"}
