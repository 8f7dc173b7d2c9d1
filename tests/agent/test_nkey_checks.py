"""`fleetbus-agent doctor` on the agent's nkey: its Secret, and its registration with the hub."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.process.findings import Finding, Severity
from fleetbus.process.settings import load_settings
from fleetbus_agent.enrolment.seeds import write_seed
from fleetbus_agent.nkey_checks import check_nkey
from fleetbus_agent.settings import AgentSettings
from support.eventually import eventually
from support.rigs.agent_trust import MEMBER_SECRET, TrustRig, trust_rig

if TYPE_CHECKING:
    from fleetbus_emulator.fleet import EmulatedFleet

pytestmark = pytest.mark.fleet(["hub", "eu1"], workloads=False)
UID = "0d8f"
JOIN = "`fleetbus join eu1 --agent`"


async def read_uid() -> str:
    return UID


async def finding(rig: TrustRig, one_time: str = "") -> Finding:
    """The finding in the member, whose agent has this one-time seed."""
    file = rig.folder / "one-time"
    if one_time:
        write_seed(file, one_time)
    settings = load_settings(
        AgentSettings,
        cluster="eu1",
        secret=MEMBER_SECRET,
        registration_file=file if one_time else None,
    )
    config = read_kube_config(rig.fleet.kubeconfig, "eu1")
    access = rig.access(make_seed(), "doctor")
    [found] = [each async for each in check_nkey(settings, access, config, UID)]
    return found


def patch(fleet: EmulatedFleet, **data: str) -> None:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    namespace, _, name = MEMBER_SECRET.partition("/")
    fleet["eu1"].patch("v1/secrets", namespace, name, {"data": encoded})


async def test_a_secret_that_is_missing_damaged_or_empty(fleet: EmulatedFleet, tmp_path: Path):
    async with trust_rig(fleet, tmp_path, ["eu1"]) as rig:
        empty = await finding(rig)
        assert (empty.severity, "none to register with" in empty.message) == (Severity.ERROR, True)
        patch(fleet, seed="SUSECRET")
        damaged = await finding(rig)
        assert (damaged.severity, MEMBER_SECRET in damaged.message) == (Severity.ERROR, True)
        assert "SUSECRET" not in str(damaged)
        fleet["eu1"].delete("v1/secrets", *MEMBER_SECRET.split("/"))
        missing = await finding(rig)
        assert (missing.severity, "is missing" in missing.message) == (Severity.ERROR, True)
        assert all(JOIN in each.advice for each in (empty, damaged, missing))


async def test_a_registration_that_is_not_sent_expired_used_or_done(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path, ["eu1"]) as rig:
        late = rig.join("eu1", expires=timedelta(seconds=-1))
        expired = await finding(rig, late)
        assert (expired.severity, "has expired" in expired.message) == (Severity.ERROR, True)
        assert JOIN in expired.advice

        one_time = rig.join("eu1")
        async with rig.login(one_time, "registration.eu1"):
            pass
        await eventually(lambda: is_valid(rig, one_time))

        async with rig.enrolment("eu1", one_time, read_uid=read_uid) as enrolment:
            await enrolment.ensure()
            done = await finding(rig, one_time)
            assert (done.severity, "is registered" in done.message) == (Severity.OK, True)
        # Nobody may register with it again: here for an agent that has lost its Secret's data.
        patch(fleet, seed=make_seed(), registered="", oneTimeKey=public_key(one_time))
        await eventually(rig.is_loaded)
        used = await finding(rig, one_time)
        assert (used.severity, "was used" in used.message) == (Severity.ERROR, True)
        assert "fleetbus clusters accept eu1" in used.advice


async def is_valid(rig: TrustRig, one_time: str) -> bool:
    """The accounts may be loaded once more, which ends logins."""
    found = await finding(rig, one_time)
    return found.severity is Severity.WARNING and "still valid" in found.message


async def test_a_secret_that_a_backup_brought_from_another_cluster(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path, ["eu1"]) as rig:
        one_time = rig.join("eu1")
        async with rig.enrolment("eu1", one_time, read_uid=read_uid) as enrolment:
            await enrolment.ensure()
        assert (await finding(rig, one_time)).severity is Severity.OK
        patch(fleet, clusterUID="1111")
        copied = await finding(rig, one_time)
        assert (copied.severity, "copy from another cluster" in copied.message) == (
            Severity.ERROR,
            True,
        )
        assert "UID 1111, not 0d8f" in copied.message
