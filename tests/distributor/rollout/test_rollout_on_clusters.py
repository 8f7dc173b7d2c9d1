"""Waves and gates on real clients and emulated API servers, round by round (rule D17)."""

from __future__ import annotations

from datetime import timedelta

from fleetbus_emulator.apiserver import Fail
from support.objects import config_map, deployment
from support.rigs.distributor import Rig, distributor_rig
from support.rigs.rollout import (
    CANARY,
    DEPLOYMENTS,
    EVERYWHERE,
    MAPS,
    T1,
    T2,
    T4,
    make_healthy,
    on_v1,
    phases,
    rollout,
    rounds,
    values,
    vote,
)


async def test_d17_waves_open_one_after_the_other_behind_their_gates(rig: Rig):
    gates = [{"name": "tests"}]
    rig.create(
        template=config_map(k="v1"),
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
        template=config_map(k="v2"),
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
        templates=[config_map(k="v1"), config_map("old", k="v1")],
        placement=EVERYWHERE,
        rollout={"waves": [CANARY]},
        policy={"fuse": {"objects": 0, "clusters": 1}},
    )
    await rounds(rig)
    assert values(rig, "old") == dict.fromkeys(("t1", "t2", "t4"), "v1")
    rig.edit(
        templates=[config_map(k="v2")],
        rollout={"waves": [CANARY], "gates": [{"name": "tests"}]},
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
    maps = [config_map(k="v1"), config_map("${cluster.labels.extra}", k="v1")]
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
    rig.create(template=deployment(image="a"), placement=EVERYWHERE, rollout={"waves": [CANARY]})
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


async def test_d17_a_cluster_that_dies_in_mid_rollout_stops_it_until_it_is_suspended(rig: Rig):
    await on_v1(rig)
    rig.clusters["t1"].faults.add(Fail(503))
    rig.edit(template=config_map(k="v2"))
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
    rig.edit(template=config_map(k="v2"))
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
            template=config_map(k="v1"),
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


async def test_d17_max_unavailable_limits_a_wave(rig: Rig):
    rig.create(
        template=deployment(image="a"), placement=EVERYWHERE, rollout={"maxUnavailable": "34%"}
    )
    await rounds(rig)
    assert [rig.has(n, DEPLOYMENTS, "web") for n in ("t1", "t2", "t4")] == [True, False, False]
    assert "t2" in rig.states()
    assert rig.entry("t2")["message"] == "it waits for its turn in wave all"
    make_healthy(rig, "t1")
    await rounds(rig)
    assert [rig.has(n, DEPLOYMENTS, "web") for n in ("t1", "t2", "t4")] == [True, True, False]


async def test_d17_a_wave_that_chooses_nothing_is_held_until_it_does(rig: Rig):
    canary = {"name": "canary", "clusterSelector": {"matchLabels": {"canary": "yse"}}}
    rig.create(template=config_map(k="v1"), placement=EVERYWHERE, rollout={"waves": [canary]})
    await rounds(rig)
    assert rollout(rig)["phase"] == "Held"
    assert "wave canary: it selects no cluster" in rollout(rig)["message"]
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "")
    rig.fleet.join("t2", canary="yse")
    await rounds(rig)
    assert [wave["clusters"] for wave in rollout(rig)["waves"]] == [["t2"], ["t1", "t4"]]
    assert rollout(rig)["phase"] == "Complete"


async def test_d17_an_optional_wave_may_choose_nothing(rig: Rig):
    waves = [CANARY | {"clusters": [{"name": "mars"}], "optional": True}]
    rig.create(template=config_map(k="v1"), placement=EVERYWHERE, rollout={"waves": waves})
    await rounds(rig)
    assert rollout(rig)["phase"] == "Complete"


async def test_d20_the_gate_quiet_waits_on_clusters_without_any_write(rig: Rig):
    rig.create(
        template=config_map(k="v1"),
        placement=EVERYWHERE,
        rollout={"waves": [CANARY | {"gates": [{"name": "quiet", "period": "1h"}]}]},
    )
    await rounds(rig)
    assert values(rig) == {"t1": "v1", "t2": "", "t4": ""}
    assert "gate quiet: no trouble so far" in rollout(rig)["message"]
    before = rig.all_writes()
    await rounds(rig)
    assert rig.all_writes() == before
    result = await rig.reconcile()
    assert result is not None
    assert result.requeue_after is not None
    assert result.requeue_after.total_seconds() <= 15


async def test_d20_a_look_at_one_cluster_does_not_start_the_quiet_period_again(rig: Rig):
    gates = [{"name": "quiet", "period": "1h"}]
    rollout_spec = {"waves": [CANARY | {"gates": gates}]}
    rig.create(template=config_map(k="v1"), placement=EVERYWHERE, rollout=rollout_spec)
    await rounds(rig)
    before = rollout(rig)["waves"][0]["gates"]
    assert before[1]["since"]
    for name in ("t1", "t2"):
        await rig.repair(name)
    rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "by hand"}})
    await rig.repair("t1")
    assert values(rig)["t1"] == "v1"
    assert rollout(rig)["waves"][0]["gates"] == before


async def test_d11_an_opened_wave_is_worked_on_alone(rig: Rig):
    rig.restart(settled=timedelta(hours=1))
    gated = {"waves": [CANARY], "gates": [{"name": "tests"}]}
    rig.create(template=config_map(k="v1"), placement=EVERYWHERE, rollout=gated)
    await rounds(rig)
    vote(rig, "canary", "tests", vote="pass")
    before = len(rig.clusters["t1"].requests)
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert len(rig.clusters["t1"].requests) == before
    assert rig.states() == dict.fromkeys(("t1", "t2", "t4"), "Applied")
    # A repair that finds drift still does its work, and another process takes the rollout over.
    rig.restart(settled=timedelta(hours=1))
    vote(rig, "remaining", "tests", vote="pass")
    await rounds(rig)
    assert rollout(rig)["phase"] == "Complete"


async def test_d17_a_template_that_fails_on_one_cluster_stops_its_wave(rig: Rig):
    for name in ("t1", "t2", "t4"):
        rig.fleet.join(name, zone="a")
    await on_v1(rig)
    rig.fleet.join("t1")
    rig.edit(template=config_map(k="${cluster.labels.zone}"))
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert "cluster t1 has no label 'zone'" in rollout(rig)["message"]
    rig.fleet.join("t1", zone="b")
    await rounds(rig)
    assert values(rig) == {"t1": "b", "t2": "a", "t4": "a"}


async def test_d17_a_cut_message_of_a_gate_ends_in_an_ellipsis(rig: Rig):
    await on_v1(rig)
    edit = {"data": {"k": "theirs"}}
    rig.clusters["t1"].patch(MAPS, "default", "m", edit, manager=f"manager-{100 * 'x'}")
    rig.edit(template=config_map(k="v2"), policy={"drift": "Report"})
    await rounds(rig)
    assert rig.states()["t1"] == "Conflict/FieldConflict"
    (gate,) = rollout(rig)["waves"][0]["gates"]
    assert "conflict with" in gate["message"]
    assert gate["message"].endswith("…")
