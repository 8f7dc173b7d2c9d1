"""Edits, pauses, losses and takeovers in the middle of a rollout (rules D17, D18, D20)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleetbus.errors import KubeError
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.rollout_state import read_state
from fleetbus_distributor.rollout import rollouts
from fleetbus_distributor.rollout.history import RESOURCE as REVISIONS
from fleetbus_distributor.rollout.revisions import Revisions
from fleetbus_emulator.apiserver import Abort, Fail
from support.objects import config_map
from support.rigs.distributor import HUB, Rig
from support.rigs.rollout import (
    CANARY,
    EVERYWHERE,
    on_v1,
    phases,
    rollout,
    rounds,
    values,
    vote,
)


async def test_d17_an_edit_in_mid_rollout_supersedes_it(rig: Rig):
    await on_v1(rig)
    gated = {"waves": [CANARY], "gates": [{"name": "tests"}]}
    rig.edit(template=config_map(k="v2"), rollout=gated)
    await rounds(rig)
    rig.edit(template=config_map(k="v3"))
    await rounds(rig)
    assert values(rig) == {"t1": "v3", "t2": "v1", "t4": "v1"}
    assert (rollout(rig)["revision"], rollout(rig)["previous"]) == (3, 2)
    (behind,) = rollout(rig)["behind"]
    assert (behind["revision"], behind["clusters"]) == (1, ["t2", "t4"])
    # Back to the first revision: only the canary has anything to undo.
    rig.edit(template=config_map(k="v1"))
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert rollout(rig)["revision"] == 4
    assert "behind" not in rollout(rig)
    assert phases(rig)["canary"] == "Open"  # every revision passes its gates
    numbers = sorted(revision["revision"] for revision in rig.hub.list(REVISIONS))
    assert numbers == [2, 3, 4]


@pytest.mark.parametrize("is_listed_before", [True, False])
async def test_d18_a_revision_that_another_round_rolls_out_again_is_not_deleted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, is_listed_before: bool
):
    await on_v1(rig)
    rig.edit(template=config_map(k="v2"))
    await rounds(rig)
    hub = rig.fleet.cluster(HUB).live
    really, late = hub.request, Document(hub, rig.resource())
    newest = read_state(late.status)
    assert newest is not None

    async def roll_out_v1() -> None:
        monkeypatch.undo()
        rig.edit(template=config_map(k="v1"))
        await rounds(rig)

    async def meanwhile(call: Any) -> bytes:
        if is_listed_before:
            answer = await really(call)
            await roll_out_v1()
            return answer
        await roll_out_v1()
        return await really(call)

    monkeypatch.setattr(hub, "request", meanwhile)
    await Revisions().trim(hub, late, 0, newest)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    numbers = [revision["revision"] for revision in rig.hub.list(REVISIONS)]
    assert rollout(rig)["revision"] == max(numbers) == 3


async def test_d20_a_paused_rollout_opens_nothing_and_writes_nothing(rig: Rig):
    await on_v1(rig)
    rig.edit(template=config_map(k="v2"), rollout={"waves": [CANARY], "paused": True})
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
    rig.edit(template=config_map(k="v2"), rollout=gated)
    await rounds(rig)
    rig.edit(policy={"suspend": True})
    vote(rig, "canary", "tests", vote="pass")
    await rounds(rig)
    assert values(rig) == {"t1": "v2", "t2": "v1", "t4": "v1"}
    rig.edit(policy=None)
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v2")


async def test_d17_a_rollout_that_is_added_to_what_is_applied_changes_nothing(rig: Rig):
    rig.create(template=config_map(k="v1"), placement=EVERYWHERE)
    await rig.reconcile()
    assert rig.hub.list(REVISIONS) == []
    rig.edit(rollout={"waves": [CANARY], "gates": [{"name": "tests"}]})
    await rounds(rig)
    assert rollout(rig)["phase"] == "Complete"
    rig.edit(template=config_map(k="v2"))
    await rounds(rig)
    assert values(rig) == {"t1": "v2", "t2": "v1", "t4": "v1"}


async def test_d17_with_a_revision_that_was_never_stored_objects_stay_as_they_are(rig: Rig):
    rig.create(
        templates=[config_map(k="v1"), config_map("old", k="v1")],
        placement=EVERYWHERE,
    )
    await rig.reconcile()
    rig.edit(
        templates=[config_map(k="v2")],
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
    rig.edit(
        template=config_map(k="v2"),
        rollout={"waves": [CANARY], "gates": [{"name": "tests"}]},
    )
    await rounds(rig)
    first, second = sorted(rig.hub.list(REVISIONS), key=lambda revision: revision["revision"])
    rig.hub.delete(REVISIONS, "default", first["metadata"]["name"])
    forged = {**first, "data": second["data"]}
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
        rig.edit(template=config_map(k=f"v{number}"), rollout={"revisionHistoryLimit": 2})
        await rounds(rig)
    numbers = sorted(revision["revision"] for revision in rig.hub.list(REVISIONS))
    assert numbers == [3, 4, 5]


async def test_d17_deleted_in_mid_rollout_everything_goes(rig: Rig):
    await on_v1(rig)
    rig.edit(
        template=config_map(k="v2"),
        rollout={"waves": [CANARY], "gates": [{"name": "tests"}]},
    )
    await rounds(rig)
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "")


async def test_d17_without_a_rollout_the_newest_goes_everywhere_and_nothing_is_stored(rig: Rig):
    await on_v1(rig)
    gated = {"waves": [CANARY], "gates": [{"name": "tests"}]}
    rig.edit(template=config_map(k="v2"), rollout=gated)
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
    rig.edit(template=config_map(k="v2"))
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert rig.condition()["reason"] == "RolloutUnusable"


async def test_d18_a_process_that_died_before_the_applies_leaves_them_to_another_one(rig: Rig):
    """The other one has looked at all clusters before, and left nothing to do there."""
    gated = {"waves": [CANARY], "gates": [{"name": "tests"}]}
    rig.restart(settled=timedelta(hours=1))
    other = rig.distributor
    rig.create(template=config_map(k="v1"), placement=EVERYWHERE, rollout=gated)
    await rounds(rig)
    rig.restart(settled=timedelta(hours=1))
    vote(rig, "canary", "tests", vote="pass")
    for name in ("t2", "t4"):
        rig.fleet.suspend(name)  # nothing is written there, as if it had died
    await rig.reconcile()
    for name in ("t2", "t4"):
        rig.fleet.suspend(name, suspended=False)
    assert values(rig)["t2"] == ""
    assert "behind" not in rollout(rig)
    rig.distributor = other
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")


async def test_d17_a_revision_that_cannot_be_stored_applies_nothing(rig: Rig):
    await on_v1(rig)
    rig.hub.faults.add(Fail(403), verb="create", resource="controllerrevisions")
    rig.edit(template=config_map(k="v2"))
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v1")
    assert rig.condition()["reason"] == "RolloutUnusable"
    assert "the revision cannot be stored: " in rig.condition()["message"]


async def test_d18_no_cluster_gets_a_revision_before_it_is_on_record(rig: Rig):
    await on_v1(rig)
    rig.edit(
        template=config_map(k="v2"),
        rollout={"waves": [CANARY], "gates": [{"name": "tests"}]},
    )
    rig.hub.faults.add(Fail(503), verb="update", resource="multiclusterresources/status")
    with pytest.raises(KubeError):
        await rig.reconcile()
    assert values(rig)["t1"] == "v1"


async def test_d20_an_outage_fails_a_wave_until_the_cluster_is_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    await on_v1(rig)
    away = rig.clusters["t1"].faults.add(Abort())
    rig.edit(template=config_map(k="v2"))
    await rounds(rig, 3)
    assert rig.states()["t1"].startswith("Unreachable")
    later = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr(rollouts, "_now", lambda: later)
    await rounds(rig, 3)
    assert (rollout(rig)["phase"], values(rig)["t2"]) == ("Failed", "v1")
    assert rig.condition()["reason"] in ("RolloutFailed", "Unreachable")
    away.remove()
    rig.restart()  # forgets how long the cluster is left alone
    await rounds(rig)
    assert values(rig) == dict.fromkeys(("t1", "t2", "t4"), "v2")
    assert rollout(rig)["phase"] == "Complete"
    assert rig.condition()["status"] == "True"
