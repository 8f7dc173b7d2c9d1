"""Values that no API server can read are refused with their field (rule D9)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from fleetbus.owned_objects.secret_values import without_secret_values
from fleetbus_distributor.render.finish import finish
from fleetbus_distributor.targets.outcome import State
from fleetbus_emulator.apiserver import Fail
from support.api.unreadable_values import UNREADABLE
from support.rigs.distributor import CONFIG_MAP, Rig
from support.rigs.real_cluster import real_cluster
from support.rows import each_row

PLACED = {"clusters": [{"name": "t1"}]}
MOST_DRY_RUNS = 12


def dry_runs(rig: Rig) -> int:
    return sum("dryRun" in one.query for one in rig.clusters["t1"].requests)


@each_row(("number", "row"), list(enumerate(UNREADABLE)))
async def test_d9_a_value_that_cannot_be_read_is_named_by_its_field(
    rig: Rig, number: int, row: tuple[dict[str, Any], str, str]
):
    obj, field, why = row
    name, before = f"x{number}", dry_runs(rig)
    rig.create(name, template=copy.deepcopy(obj), placement=PLACED)
    await rig.reconcile(name)
    assert rig.states(name) == {"t1": "Failed/Invalid"}
    message = rig.entry("t1", name)["message"]
    assert f" w: {field}: failed to convert new object" in message.replace("default/", "")
    assert without_secret_values(why, obj, limit=600) in message
    sent = dry_runs(rig) - before
    assert 0 < sent <= MOST_DRY_RUNS
    await rig.reconcile(name)
    assert rig.entry("t1", name)["message"] == message
    assert dry_runs(rig) - before == sent


async def test_d9_a_value_that_cannot_be_left_out_has_no_field(rig: Rig):
    words = "failed to convert new object (default/m): unable to convert unstructured object to v1"
    refusal = Fail(500, message=f"{words}, Kind=ConfigMap: always")
    rig.clusters["t1"].faults.add(refusal, verb="patch", resource="configmaps")
    rig.clusters["t1"].faults.add(refusal, verb="create", resource="configmaps")
    rig.create(template=copy.deepcopy(CONFIG_MAP), placement=PLACED)
    await rig.reconcile()
    assert rig.states() == {"t1": "Failed/Invalid"}
    assert rig.entry("t1")["message"].startswith(
        "ConfigMap default/m: failed to convert new object"
    )


async def test_d6_a_field_of_the_name_immutable_is_not_one_that_cannot_be_changed(rig: Rig):
    rig.create(template={**CONFIG_MAP, "immutable": "no"}, placement=PLACED)
    await rig.reconcile()
    message = rig.entry("t1")["message"]
    assert ".immutable: expected boolean" in message
    assert "recreate" not in message


@pytest.mark.full
async def test_d9_a_real_server_is_understood(tmp_path: Path):
    async with real_cluster(tmp_path) as cluster:
        for obj, field, why in UNREADABLE:
            result = await cluster.round(finish(obj, "t"))
            assert (result.state, result.reason) == (State.FAILED, "Invalid"), field
            assert f"w: {field}: failed to convert new object" in result.message
            assert without_secret_values(why, obj, limit=600) in result.message
