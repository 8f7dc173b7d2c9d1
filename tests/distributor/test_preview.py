"""A plan equals the writes that follow, and writes nothing itself (rule D25)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION
from fleetbus_distributor.kind import API_VERSION, KIND
from fleetbus_distributor.preview.dry_run_fleet import DryRunFleet
from fleetbus_distributor.preview.preview import ClusterPlan, Preview, candidate_of, preview
from fleetbus_distributor.preview.stores import PlannedBudget
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_distributor.targets.outcome import State
from support.api.spellings import ZEROES, texts
from support.objects import config_map
from support.rigs.distributor import CONFIG_MAP, HUB, Rig
from support.rigs.rollout import vote

MAPS = "v1/configmaps"
FROZEN = {"immutable": True}
BOTH = {"clusters": [{"name": "t1"}, {"name": "t2"}]}
Object = dict[str, Any]
Writes = dict[str, list[tuple[str, str]]]
_SET_BY_SERVER = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")


@dataclass(frozen=True)
class Planned:
    """A plan, the writes that it names, and what would be there afterwards."""

    preview: Preview
    writes: Writes
    after: Mapping[tuple[str, str], Object | None]

    @property
    def actions(self) -> dict[str, dict[str, str]]:
        return {
            cluster.name: {item.ref.name: item.action.value for item in cluster.objects}
            for cluster in self.preview.clusters
            if cluster.objects
        }

    def cluster(self, name: str) -> ClusterPlan:
        return next(
            cluster_plan for cluster_plan in self.preview.clusters if cluster_plan.name == name
        )

    def reasons(self, name: str) -> list[str]:
        return [f"{finding.state}/{finding.reason}" for finding in self.cluster(name).findings]


def document(**spec: Any) -> Object:
    metadata = {"name": "x", "namespace": "default"}
    spec = {"placement": BOTH, **spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


async def plan(rig: Rig, manifest: Object | None = None) -> Planned:
    """Plan a manifest, or what is on the hub."""
    before = {name: stored(rig, name) for name in rig.clusters}
    fleet = DryRunFleet(rig.fleet)
    try:
        hub = fleet.client(HUB)
        resource = await candidate_of(hub, manifest) if manifest else rig.resource()
        budget = PlannedBudget(rig.redis)
        settings = DistributorSettings(require_service_account=rig.require_service_account)
        previewed = await preview(
            fleet, resource, budget=budget, settings=settings, read_vote=rig.read_vote
        )
    finally:
        await fleet.aclose()
    assert {name: stored(rig, name) for name in rig.clusters} == before, "a plan has written"
    members = {name: client for name, client in fleet.clients.items() if name != HUB}
    writes = {
        name: sorted((_verb(write.verb), write.path) for write in client.writes)
        for name, client in members.items()
        if client.writes
    }
    after = {
        (name, write.path): client.after(write.path)
        for name, client in members.items()
        for write in client.writes
    }
    return Planned(previewed, writes, after)


def stored(rig: Rig, cluster: str) -> list[tuple[str, str]]:
    """The accepted writes of one cluster that were no dry runs."""
    return [
        (_verb(write.verb), write.path)
        for write in rig.writes(cluster)
        if write.query.get("dryRun") is None and 200 <= write.status < 300
    ]


def _verb(verb: str) -> str:
    return "delete" if verb == "delete" else "write"


async def run(rig: Rig, manifest: Object | None = None) -> Writes:
    """Do what was planned, until nothing changes any more; the writes on the members."""
    counts = {name: len(stored(rig, name)) for name in rig.clusters}
    if manifest and rig.exists():
        rig.edit(**{field: manifest["spec"].get(field) for field in ("template", "templates")})
        rig.edit(**manifest["spec"])
    elif manifest:
        rig.create("x", **manifest["spec"])
    for _ in range(6):
        await rig.reconcile()
    by_cluster = {name: stored(rig, name)[counts[name] :] for name in rig.clusters if name != HUB}
    return {name: sorted(writes) for name, writes in by_cluster.items() if writes}


async def check(rig: Rig, manifest: Object | None = None) -> Planned:
    """Plan, do it, and compare: the writes, and what is there afterwards."""
    planned = await plan(rig, manifest)
    assert await run(rig, manifest) == planned.writes
    uid = rig.resource()["metadata"]["uid"] if rig.exists() else ""
    for (cluster, path), tree in planned.after.items():
        _, _, suffix = path.partition("/namespaces/")
        namespace, _, name = suffix.partition("/configmaps/")
        live = rig.clusters[cluster].get(MAPS, namespace, name)
        assert (live is None) == (tree is None), path
        if live and tree:
            assert _content(live, uid) == _content(tree, uid), path
    again = await plan(rig)
    assert again.writes == {}, "what was planned is done"
    return planned


def _content(tree: Object, uid: str) -> Object:
    """The part that does not depend on the moment: the mark has a UID that no plan knows."""
    metadata = {k: v for k, v in tree["metadata"].items() if k not in _SET_BY_SERVER}
    del metadata["labels"], metadata["annotations"], uid
    return {**tree, "metadata": metadata}


async def test_d25_a_new_one(rig: Rig):
    planned = await check(rig, document(template=CONFIG_MAP))
    assert planned.actions == {"t1": {"m": "create"}, "t2": {"m": "create"}}
    assert planned.preview.has_changes
    assert not planned.preview.has_errors


async def test_d25_an_edit_changes_deletes_and_creates(rig: Rig):
    old = [config_map("stays"), config_map("changes"), config_map("goes")]
    await run(rig, document(templates=old))
    new = [config_map("stays"), config_map("changes", k="new"), config_map("comes")]
    planned = await check(rig, document(templates=new))
    expected = {"changes": "change", "comes": "create", "goes": "delete"}
    assert planned.actions == {"t1": expected, "t2": expected}
    assert planned.cluster("t1").unchanged == 1
    change = next(item for item in planned.cluster("t1").objects if item.ref.name == "changes")
    assert [line for line in change.diff if line[0] in "+-"] == ["-  k: v", "+  k: new"]


async def test_d25_nothing(rig: Rig):
    await run(rig, document(template=CONFIG_MAP))
    planned = await check(rig, document(template=CONFIG_MAP))
    assert not planned.preview.has_changes
    assert planned.cluster("t1").unchanged == 1


async def test_d25_drift_is_corrected_or_reported(rig: Rig):
    await run(rig, document(template=CONFIG_MAP))
    rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "by hand"}})
    planned = await check(rig)
    assert planned.actions == {"t1": {"m": "change"}}
    rig.edit(policy={"drift": "Report"})
    await rig.reconcile()
    rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "by hand"}})
    planned = await check(rig)
    assert planned.actions == {}
    assert planned.reasons("t1") == ["Drifted/Drifted"]


@pytest.mark.parametrize("drift", ["Correct", "Report"])
async def test_d25_d3_a_plan_compares_as_the_rounds_do(rig: Rig, drift: str):
    """Its first comparison knows no earlier answer of a server."""
    zeroes = [zero | {"metadata": {"name": "z"}} for zero in ZEROES[:2]]
    templates, edited = ([*texts(release)[:2], *zeroes] for release in ("1.1", "1.10"))
    policy = {"drift": drift}
    rig.create(templates=templates, placement=BOTH, policy=policy)
    await rig.reconcile()
    assert (await plan(rig, document(templates=templates, policy=policy))).actions == {}
    planned = await plan(rig, document(templates=edited, policy=policy))
    assert planned.actions == {cluster: {"x": "change"} for cluster in ("t1", "t2")}


async def test_d25_d28_a_plan_does_not_run_a_job_again(rig: Rig):
    container = {"name": "c", "image": "registry.example.com/c:1"}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"ttlSecondsAfterFinished": 2, "template": pod},
    }
    rig.create(templates=[job, config_map()], placement=BOTH)
    await rig.reconcile()
    rig.clusters["t1"].delete("batch/v1/jobs", "default", "j", policy="Background")
    planned = await plan(rig, document(templates=[job, config_map(k="edited")]))
    assert planned.actions == {cluster: {"m": "change"} for cluster in ("t1", "t2")}


async def test_d25_a_conflict_is_no_write(rig: Rig):
    rig.clusters["t1"].create(MAPS, config_map(k="of somebody"))
    planned = await check(rig, document(template=CONFIG_MAP))
    assert planned.actions == {"t2": {"m": "create"}}
    assert planned.reasons("t1") == ["Conflict/NotOurs"]
    adopted = document(template=CONFIG_MAP, policy={"conflict": "Adopt"})
    assert (await check(rig, adopted)).actions == {"t1": {"m": "change"}}


async def test_d25_the_fuse_holds(rig: Rig):
    chosen = {"clusterSelector": {"matchLabels": {"zone": "a"}}}
    for name in ("t1", "t2"):
        rig.fleet.join(name, zone="a")
    await run(rig, document(template=CONFIG_MAP, placement=chosen))
    for name in ("t1", "t2"):
        rig.fleet.join(name, zone="b")
    planned = await check(rig)
    assert planned.actions == {}
    assert planned.reasons("t1") == ["Held/EmptySelection"]
    rig.annotate(CONFIRM_PRUNE_ANNOTATION, rig.plan_hash())
    confirmed = await check(rig)
    assert confirmed.actions == {"t1": {"m": "delete"}, "t2": {"m": "delete"}}


async def test_d25_a_plan_spends_no_budget(rig: Rig):
    selector = {"clusterSelector": {"matchLabels": {"zone": "a"}}}
    policy = {"fuse": {"clusters": 5, "objects": 9, "percent": 100}}
    for name in ("t1", "t2"):
        rig.fleet.join(name, zone="a")
    await run(rig, document(template=CONFIG_MAP, placement=selector, policy=policy))
    rig.fleet.join("t2", zone="b")
    for _ in range(3):
        assert (await plan(rig)).actions == {"t2": {"m": "delete"}}
    assert await rig.redis.keys("*budget*") == []
    await check(rig)


async def test_d25_recreation(rig: Rig):
    frozen = config_map() | FROZEN
    await run(rig, document(template=frozen, policy={"recreate": True}))
    new = config_map(k="new") | FROZEN
    planned = await check(rig, document(template=new, policy={"recreate": True}))
    assert planned.actions == {"t1": {"m": "recreate"}, "t2": {"m": "recreate"}}
    refused = document(template=config_map(k="other") | FROZEN, policy={})
    found = await check(rig, refused)
    assert found.reasons("t1") == ["Failed/Invalid"]
    assert found.preview.has_errors


async def test_d25_a_missing_namespace(rig: Rig):
    waiting = document(template=config_map(namespace="shop"))
    planned = await check(rig, waiting)
    assert planned.reasons("t1") == ["Waiting/NamespaceMissing"]
    assert planned.writes == {}
    policy = {"createNamespaces": True}
    planned = await plan(rig, document(template=config_map(namespace="shop"), policy=policy))
    assert planned.actions["t1"] == {"shop": "create", "m": "create"}
    change = next(item for item in planned.cluster("t1").objects if item.ref.name == "m")
    assert not change.is_checked


async def test_d25_a_namespace_of_the_same_templates(rig: Rig):
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    templates = [namespace, config_map(namespace="shop")]
    planned = await plan(rig, document(templates=templates))
    assert planned.actions["t1"] == {"shop": "create", "m": "create"}
    await run(rig, document(templates=templates))
    assert (await plan(rig)).writes == {}


async def test_d25_an_unreachable_cluster_does_not_hide_the_others(rig: Rig):
    await rig.servers.stop("t1")
    planned = await plan(rig, document(template=CONFIG_MAP))
    assert planned.actions == {"t2": {"m": "create"}}
    assert [finding.state for finding in planned.cluster("t1").findings] == [State.UNREACHABLE]
    assert planned.preview.has_errors


async def test_d25_a_deleted_one(rig: Rig):
    await run(rig, document(template=CONFIG_MAP))
    rig.delete()
    planned = await plan(rig)
    assert planned.actions == {"t1": {"m": "delete"}, "t2": {"m": "delete"}}
    assert await run(rig) == planned.writes


async def test_d25_an_invalid_spec_is_refused_before_any_cluster(rig: Rig):
    rig.create("x", placement=BOTH, template=CONFIG_MAP, vars={"a b": 1})
    planned = await plan(rig)
    assert planned.writes == {}
    assert "InvalidSpec" in planned.preview.problem
    assert planned.preview.has_errors


async def test_d25_secret_values_are_in_no_plan(rig: Rig):
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "default"},
        "stringData": {"key": "canary-one", "other": "same"},
    }
    await run(rig, document(template=secret))
    new = {**secret, "stringData": {"key": "canary-two", "other": "same"}}
    planned = await plan(rig, document(template=new))
    text = repr(planned.preview)
    lines = planned.cluster("t1").objects[0].diff
    assert any("<redacted, changed>" in line for line in lines)
    for canary in ("canary", "Y2FuYXJ5"):
        assert canary not in "\n".join(lines)
        assert canary not in text.replace(repr(planned.preview.status), "")


async def test_d25_without_a_store_the_plan_says_that_the_budget_is_unknown(rig: Rig):
    selector = {"clusterSelector": {"matchLabels": {"zone": "a"}}}
    policy = {"fuse": {"clusters": 5, "objects": 9, "percent": 100}}
    for name in ("t1", "t2"):
        rig.fleet.join(name, zone="a")
    await run(rig, document(template=CONFIG_MAP, placement=selector, policy=policy))
    rig.fleet.join("t2", zone="b")
    fleet, budget = DryRunFleet(rig.fleet), PlannedBudget(None)
    try:
        await preview(
            fleet,
            rig.resource(),
            budget=budget,
            settings=DistributorSettings(),
            read_vote=rig.read_vote,
        )
    finally:
        await fleet.aclose()
    assert budget.is_unknown


async def test_d25_the_waves_of_a_rollout(rig: Rig):
    canary = {"name": "canary", "clusters": [{"name": "t1"}], "gates": [{"name": "tests"}]}
    rollout = {"waves": [canary]}
    await run(rig, document(template=CONFIG_MAP))
    new = document(template=config_map(k="new"), rollout=rollout)
    planned = await check(rig, new)
    assert planned.actions == {"t1": {"m": "change"}}
    waves = {wave["name"]: wave["phase"] for wave in planned.preview.status["rollout"]["waves"]}
    assert waves == {"canary": "Open", "remaining": "Waiting"}


async def test_d25_a_vote_opens_a_wave_in_the_plan_as_in_the_round_that_follows(rig: Rig):
    canary = {"name": "canary", "clusters": [{"name": "t1"}], "gates": [{"name": "tests"}]}
    rig.create(template=CONFIG_MAP, placement=BOTH, rollout={"waves": [canary]})
    for _ in range(4):
        await rig.reconcile()
    assert rig.states() == {"t1": "Applied", "t2": "Waiting/WaveNotOpen"}
    assert (await plan(rig)).actions == {}
    vote(rig, "canary", "tests", vote="pass")
    planned = await plan(rig)
    assert planned.actions == {"t2": {"m": "create"}}
    await rig.until(lambda: rig.states() == {"t1": "Applied", "t2": "Applied"})


async def test_d25_without_a_service_account_the_plan_refuses_as_the_round_does(rig: Rig):
    rig.require_service_account = True
    rig.restart()
    planned = await plan(rig, document(template=CONFIG_MAP))
    rig.create(template=CONFIG_MAP, placement=BOTH)
    await rig.reconcile()
    refusal = rig.condition()
    assert planned.preview.problem == f"{refusal['reason']}: {refusal['message']}"
    assert refusal["reason"] == "ServiceAccountRequired"
    assert planned.writes == {}
