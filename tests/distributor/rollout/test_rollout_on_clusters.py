"""A rollout on real clients and emulated API servers, driven round by round (rule D17)."""

from __future__ import annotations

import copy
import json
from typing import Any

from fleetbus_distributor.rollout.revisions import RESOURCE as REVISIONS
from fleetbus_emulator.apiserver import Fail
from support.rigs.distributor import CONFIG_MAP, Object, Rig, distributor_rig

MAPS = "v1/configmaps"
DEPLOYMENTS = "apps/v1/deployments"
T1, T2, T4 = {"name": "t1"}, {"name": "t2"}, {"name": "t4"}
EVERYWHERE = {"clusters": [T1, T2, T4]}
CANARY = {"name": "canary", "clusters": [T1]}


def config_map(value: str, name: str = "m") -> Object:
    made = copy.deepcopy(CONFIG_MAP)
    made["metadata"]["name"] = name
    made["data"] = {"k": value}
    return made


def deployment(image: str) -> Object:
    labels = {"app": "web"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
        },
    }


def values(rig: Rig, name: str = "m") -> dict[str, str]:
    """Cluster → the value of the ConfigMap there; "" if there is none."""
    found = {n: rig.clusters[n].get(MAPS, "default", name) for n in ("t1", "t2", "t4")}
    return {n: one["data"]["k"] if one else "" for n, one in found.items()}


def rollout(rig: Rig) -> Object:
    return rig.resource()["status"]["rollout"]


def phases(rig: Rig) -> dict[str, str]:
    return {wave["name"]: wave["phase"] for wave in rollout(rig)["waves"]}


async def rounds(rig: Rig, count: int = 6) -> None:
    """Enough rounds for everything that needs no event."""
    for _ in range(count):
        await rig.reconcile()


def vote(rig: Rig, wave: str, gate: str, **body: str) -> None:
    rig.votes[f"{rollout(rig)['votes']}.{wave}.{gate}"] = json.dumps(body).encode()


async def on_v1(rig: Rig, **spec: Any) -> None:
    """Everything is on the first revision, whose waves have passed."""
    rig.create(template=config_map("v1"), placement=EVERYWHERE, rollout={"waves": [CANARY]})
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert rollout(rig)["phase"] == "Complete"
    if spec:
        rig.edit(**spec)
        await rounds(rig)


async def test_d17_waves_open_one_after_the_other_behind_their_gates(rig: Rig):
    gates = [{"name": "tests"}]
    rig.create(
        template=config_map("v1"),
        placement=EVERYWHERE,
        rollout={"waves": [CANARY | {"gates": gates}]},
    )
    await rounds(rig)
    assert values(rig) == {"t1": "v1", "t2": "", "t4": ""}
    assert rig.states() == {
        "t1": "Applied",
        "t2": "Waiting/WaveNotOpen",
        "t4": "Waiting/WaveNotOpen",
    }
    assert phases(rig) == {"canary": "Open", "remaining": "Waiting"}
    assert "no vote yet on fleetbus.votes.default.x.1-" in rollout(rig)["message"]
    before = rig.all_writes()
    await rounds(rig)
    assert rig.all_writes() == before
    vote(rig, "canary", "tests", vote="pass")
    await rounds(rig)
    assert values(rig) == {"t1": "v1", "t2": "v1", "t4": "v1"}
    assert phases(rig) == {"canary": "Passed", "remaining": "Passed"}
    assert rollout(rig)["phase"] == "Complete"
    before = rig.all_writes()
    await rounds(rig)
    assert rig.all_writes() == before


async def test_d17_a_cluster_whose_wave_is_not_open_keeps_its_revision(rig: Rig):
    await on_v1(rig)
    rig.edit(
        template=config_map("v2"),
        rollout={"waves": [CANARY], "gates": [{"name": "tests"}]},
    )
    await rounds(rig)
    assert values(rig) == {"t1": "v2", "t2": "v1", "t4": "v1"}
    rig.clusters["t2"].patch(MAPS, "default", "m", {"data": {"k": "by hand"}})
    await rig.repair("t2")
    assert values(rig)["t2"] == "v1"
    rig.clusters["t2"].delete(MAPS, "default", "m")
    await rig.repair("t2")
    await rig.reconcile()
    assert values(rig)["t2"] == "v1"
    rig.restart()  # another process reads the earlier revision from the hub
    rig.clusters["t4"].patch(MAPS, "default", "m", {"data": {"k": "by hand"}})
    await rig.reconcile()
    assert values(rig) == {"t1": "v2", "t2": "v1", "t4": "v1"}


async def test_d17_d8_what_a_revision_drops_goes_with_its_wave_and_is_not_held(rig: Rig):
    rig.create(
        templates=[config_map("v1"), config_map("v1", "old")],
        placement=EVERYWHERE,
        rollout={"waves": [CANARY]},
        policy={"fuse": {"objects": 0, "clusters": 1}},
    )
    await rounds(rig)
    assert values(rig, "old") == dict.fromkeys(("t1", "t2", "t4"), "v1")
    rig.edit(
        templates=[config_map("v2")], rollout={"waves": [CANARY], "gates": [{"name": "tests"}]}
    )
    await rounds(rig)
    assert values(rig, "old") == {"t1": "", "t2": "v1", "t4": "v1"}
    # Any other edit meanwhile does not change why it goes.
    rig.edit(policy={"fuse": {"objects": 0, "clusters": 1}, "createNamespaces": True})
    await rounds(rig)
    assert values(rig, "old") == {"t1": "", "t2": "v1", "t4": "v1"}
    vote(rig, "canary", "tests", vote="pass")
    await rounds(rig)
    assert values(rig, "old") == dict.fromkeys(("t1", "t2", "t4"), "")
    assert "held" not in rig.resource()["status"]


async def test_d17_d8_a_relabelled_cluster_that_waits_is_held_all_the_same(rig: Rig):
    maps = [config_map("v1"), config_map("v1", "${cluster.labels.extra}")]
    for name in ("t1", "t2", "t4"):
        rig.fleet.join(name, extra="old")
    rig.create(
        templates=maps,
        placement=EVERYWHERE,
        rollout={"waves": [CANARY]},
        policy={"fuse": {"objects": 0}},
    )
    await rounds(rig)
    rig.edit(vars={"any": 1}, rollout={"waves": [CANARY], "gates": [{"name": "tests"}]})
    await rounds(rig)
    rig.fleet.join("t2", extra="new")
    await rounds(rig)
    assert values(rig, "new")["t2"] == "v1"
    assert values(rig, "old")["t2"] == "v1"
    assert rig.states()["t2"] == "Held/DeletionFuse"


async def test_d17_a_wave_waits_for_healthy_objects_and_is_woken_by_them(rig: Rig):
    rig.create(template=deployment("a"), placement=EVERYWHERE, rollout={"waves": [CANARY]})
    await rounds(rig)
    assert rig.has("t1", DEPLOYMENTS, "web")
    assert not rig.has("t2", DEPLOYMENTS, "web")
    assert "t1: Deployment default/web: its controller has not seen" in rollout(rig)["message"]
    assert ("x", "t1") in rig.later  # the safety net for kinds that are not watched
    rig.later.clear()
    make_healthy(rig, "t1")
    await rig.repair("t1")
    assert rig.later["x", ""].total_seconds() < 1
    await rounds(rig)
    assert rig.has("t2", DEPLOYMENTS, "web")
    assert rollout(rig)["phase"] == "Progressing"
    for name in ("t2", "t4"):
        make_healthy(rig, name)
        await rig.repair(name)
    await rounds(rig)
    assert rollout(rig)["phase"] == "Complete"


def make_healthy(rig: Rig, cluster: str) -> None:
    made = rig.get(cluster, DEPLOYMENTS, "web")
    status = {
        "observedGeneration": made["metadata"]["generation"],
        "replicas": 1,
        "updatedReplicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
    }
    rig.clusters[cluster].update_status(DEPLOYMENTS, made | {"status": status})


async def test_d17_an_edit_in_mid_rollout_supersedes_it(rig: Rig):
    await on_v1(rig)
    gated = {"waves": [CANARY], "gates": [{"name": "tests"}]}
    rig.edit(template=config_map("v2"), rollout=gated)
    await rounds(rig)
    rig.edit(template=config_map("v3"))
    await rounds(rig)
    assert values(rig) == {"t1": "v3", "t2": "v1", "t4": "v1"}
    assert (rollout(rig)["revision"], rollout(rig)["previous"]) == (3, 2)
    (behind,) = rollout(rig)["behind"]
    assert (behind["revision"], behind["clusters"]) == (1, ["t2", "t4"])
    # Back to the first revision: only the canary has anything to undo.
    rig.edit(template=config_map("v1"))
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert rollout(rig)["revision"] == 4
    assert "behind" not in rollout(rig)
    assert phases(rig)["canary"] == "Open"  # every revision passes its gates
    numbers = sorted(one["revision"] for one in rig.hub.list(REVISIONS))
    assert numbers == [2, 3, 4]


async def test_d20_a_paused_rollout_opens_nothing_and_writes_nothing(rig: Rig):
    await on_v1(rig)
    rig.edit(template=config_map("v2"), rollout={"waves": [CANARY], "paused": True})
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert rollout(rig)["phase"] == "Paused"
    before = rig.all_writes()
    await rounds(rig)
    assert rig.all_writes() == before
    rig.edit(rollout={"waves": [CANARY]})
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v2")


async def test_d20_a_suspended_resource_stands_still_and_goes_on(rig: Rig):
    await on_v1(rig)
    gated = {"waves": [CANARY], "gates": [{"name": "tests"}]}
    rig.edit(template=config_map("v2"), rollout=gated)
    await rounds(rig)
    rig.edit(policy={"suspend": True})
    vote(rig, "canary", "tests", vote="pass")
    await rounds(rig)
    assert values(rig) == {"t1": "v2", "t2": "v1", "t4": "v1"}
    rig.edit(policy=None)
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v2")


async def test_d17_a_cluster_that_dies_in_mid_rollout_stops_it_until_it_is_suspended(rig: Rig):
    await on_v1(rig)
    rig.clusters["t1"].faults.add(Fail(503))
    rig.edit(template=config_map("v2"))
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert "0 of 1 clusters are ready; t1: " in rollout(rig)["message"]
    rig.fleet.suspend("t1")
    await rounds(rig)
    assert values(rig) == {"t1": "v1", "t2": "v2", "t4": "v2"}
    rig.clusters["t1"].faults.clear()
    rig.fleet.suspend("t1", suspended=False)
    await rounds(rig)
    assert values(rig)["t1"] == "v2"


async def test_d17_a_cluster_that_leaves_for_good_stops_nothing(rig: Rig):
    await on_v1(rig)
    rig.fleet.leave("t2")
    rig.edit(template=config_map("v2"))
    await rounds(rig)
    assert rollout(rig)["phase"] == "Complete"
    rig.fleet.join("t2")
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v2")


async def test_d17_clusters_join_with_the_last_wave_and_drop_out_of_theirs(valkey_url: str):
    async with distributor_rig("t1", "t2", "t3", redis_url=valkey_url) as rig:
        rig.fleet.leave("t3")
        names = [T1, T2, {"name": "t3"}, T4]
        rig.create(
            template=config_map("v1"),
            placement={"clusters": names},
            rollout={"waves": [CANARY], "gates": [{"name": "tests"}]},
        )
        await rounds(rig)
        rig.fleet.join("t3")
        await rounds(rig)
        assert rig.states()["t3"] == "Waiting/WaveNotOpen"
        assert rollout(rig)["waves"][-1]["clusters"] == ["t2", "t4", "t3"]
        vote(rig, "canary", "tests", vote="pass")
        vote(rig, "remaining", "tests", vote="pass")
        await rounds(rig)
        assert set(rig.states().values()) == {"Applied"}
        rig.edit(placement={"clusters": [T1, T4]})
        await rounds(rig)
        assert [wave["clusters"] for wave in rollout(rig)["waves"]] == [["t1"], ["t4"]]
        rig.edit(placement={"clusters": names})
        await rounds(rig)
        assert set(rig.states().values()) == {"Applied"}  # the last wave has passed


async def test_d17_a_rollout_that_is_added_to_what_is_applied_changes_nothing(rig: Rig):
    rig.create(template=config_map("v1"), placement=EVERYWHERE)
    await rig.reconcile()
    assert rig.hub.list(REVISIONS) == []
    rig.edit(rollout={"waves": [CANARY], "gates": [{"name": "tests"}]})
    await rounds(rig)
    assert rollout(rig)["phase"] == "Complete"
    rig.edit(template=config_map("v2"))
    await rounds(rig)
    assert values(rig) == {"t1": "v2", "t2": "v1", "t4": "v1"}


async def test_d17_with_a_revision_that_was_never_stored_objects_stay_as_they_are(rig: Rig):
    rig.create(templates=[config_map("v1"), config_map("v1", "old")], placement=EVERYWHERE)
    await rig.reconcile()
    rig.edit(
        templates=[config_map("v2")],
        rollout={"waves": [CANARY], "gates": [{"name": "tests"}]},
    )
    await rounds(rig)
    assert values(rig) == {"t1": "v2", "t2": "v1", "t4": "v1"}
    assert values(rig, "old") == {"t1": "", "t2": "v1", "t4": "v1"}
    assert rig.states()["t2"] == "Waiting/WaveNotOpen"
    assert "is not stored, so its objects stay" in rig.entry("t2")["message"]
    vote(rig, "canary", "tests", vote="pass")
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v2")
    assert values(rig, "old") == dict.fromkeys(("t1", "t2", "t4"), "")


async def test_d18_a_lost_or_forged_revision_changes_nothing(rig: Rig):
    await on_v1(rig)
    rig.edit(template=config_map("v2"), rollout={"waves": [CANARY], "gates": [{"name": "tests"}]})
    await rounds(rig)
    first = next(one for one in rig.hub.list(REVISIONS) if one["revision"] == 1)
    rig.hub.delete(REVISIONS, "default", first["metadata"]["name"])
    forged = {**first, "data": {"encoding": "zlib+base64", "spec": "AAAA"}}
    for field in ("uid", "resourceVersion"):
        forged["metadata"].pop(field)
    rig.hub.create(REVISIONS, forged)
    rig.restart()
    await rounds(rig)
    assert values(rig) == {"t1": "v2", "t2": "v1", "t4": "v1"}
    assert rig.states()["t2"] == "Waiting/WaveNotOpen"


async def test_d18_only_so_many_revisions_are_kept(rig: Rig):
    await on_v1(rig)
    for number in range(2, 6):
        rig.edit(template=config_map(f"v{number}"), rollout={"revisionHistoryLimit": 2})
        await rounds(rig)
    numbers = sorted(one["revision"] for one in rig.hub.list(REVISIONS))
    assert numbers == [3, 4, 5]


async def test_d17_max_unavailable_limits_a_wave(rig: Rig):
    rig.create(template=deployment("a"), placement=EVERYWHERE, rollout={"maxUnavailable": "34%"})
    await rounds(rig)
    assert [rig.has(n, DEPLOYMENTS, "web") for n in ("t1", "t2", "t4")] == [True, False, False]
    assert "t2" in rig.states()
    assert rig.entry("t2")["message"] == "it waits for its turn in wave all"
    make_healthy(rig, "t1")
    await rounds(rig)
    assert [rig.has(n, DEPLOYMENTS, "web") for n in ("t1", "t2", "t4")] == [True, True, False]


async def test_d17_a_wave_that_chooses_nothing_is_held_until_it_does(rig: Rig):
    canary = {"name": "canary", "clusterSelector": {"matchLabels": {"canary": "yse"}}}
    rig.create(template=config_map("v1"), placement=EVERYWHERE, rollout={"waves": [canary]})
    await rounds(rig)
    assert rollout(rig)["phase"] == "Held"
    assert "wave canary: it chooses no cluster" in rollout(rig)["message"]
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "")
    rig.fleet.join("t2", canary="yse")
    await rounds(rig)
    assert [wave["clusters"] for wave in rollout(rig)["waves"]] == [["t2"], ["t1", "t4"]]
    assert rollout(rig)["phase"] == "Complete"


async def test_d17_an_optional_wave_may_choose_nothing(rig: Rig):
    waves = [CANARY | {"clusters": [{"name": "mars"}], "optional": True}]
    rig.create(template=config_map("v1"), placement=EVERYWHERE, rollout={"waves": waves})
    await rounds(rig)
    assert rollout(rig)["phase"] == "Complete"


async def test_d17_deleted_in_mid_rollout_everything_goes(rig: Rig):
    await on_v1(rig)
    rig.edit(template=config_map("v2"), rollout={"waves": [CANARY], "gates": [{"name": "tests"}]})
    await rounds(rig)
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "")


async def test_d17_without_a_rollout_the_newest_goes_everywhere_and_nothing_is_stored(rig: Rig):
    await on_v1(rig)
    gated = {"waves": [CANARY], "gates": [{"name": "tests"}]}
    rig.edit(template=config_map("v2"), rollout=gated)
    await rounds(rig)
    rig.edit(rollout=None)
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v2")
    assert "rollout" not in rig.resource()["status"]


async def test_a_malformed_rollout_in_the_status_applies_nothing(rig: Rig):
    await on_v1(rig)
    resource = rig.resource()
    resource["status"]["rollout"]["waves"] = [{"name": "x", "phase": "Waiting"}]
    del resource["status"]["rollout"]["revision"]
    rig.hub.update_status("fleetbus.dev/v1alpha1/multiclusterresources", resource)
    rig.edit(template=config_map("v2"))
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert rig.condition()["reason"] == "RolloutUnusable"
