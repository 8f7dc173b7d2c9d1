"""An agent registers, keeps its seed in its cluster, and rotates it (rule S3)."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import AgentRecord, read_record
from fleetbus.errors import FleetbusError
from fleetbus_agent.enrolment.enrolment import Enrolment
from support.eventually import eventually
from support.rigs.agent_trust import MEMBER_SECRET, RECORDS, TrustRig, trust_rig

if TYPE_CHECKING:
    from fleetbus_emulator.fleet import EmulatedFleet

pytestmark = pytest.mark.fleet(["hub", "eu1"], workloads=False)


def record(rig: TrustRig, cluster: str = "eu1") -> AgentRecord:
    secret = rig.fleet["hub"].get("v1/secrets", RECORDS, f"{cluster}-agent")
    assert secret is not None
    return read_record(secret)


def kept(rig: TrustRig, key: str) -> str:
    secret = rig.fleet["eu1"].get("v1/secrets", *MEMBER_SECRET.split("/"))
    return base64.b64decode((secret or {}).get("data", {}).get(key, "")).decode()


async def test_s3_the_seed_is_made_in_the_member_and_never_leaves_it(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path, ["eu1"]) as rig:
        one_time = rig.join("eu1")

        async def read_uid() -> str:
            return "0d8f"

        async with rig.enrolment("eu1", one_time, read_uid=read_uid) as enrolment:
            await enrolment.ensure()
            assert enrolment.trouble == ""
            file = rig.nkey_file("eu1")
            seed = file.read_text().strip()
            assert file.stat().st_mode & 0o777 == 0o600
            assert seed == kept(rig, "seed") != one_time
            assert record(rig).key == public_key(seed)
            assert (record(rig).uid, record(rig).instance) == ("0d8f", "agent-a")
            await rig.works(seed, "eu1")
            # A restart needs nobody: neither the hub nor the one-time nkey.
            async with rig.enrolment("eu1", one_time, replica="b") as again:
                await again.ensure()
                assert rig.nkey_file("eu1", "b").read_text().strip() == seed
        on_hub = str(fleet["hub"].list("v1/secrets"))
        assert seed not in on_hub
        assert base64.b64encode(seed.encode()).decode() not in on_hub
        assert seed not in (tmp_path / "nats.log").read_text()


async def test_s3_an_agent_rotates_by_itself_and_its_replicas_follow(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path, ["eu1"]) as rig:
        one_time = rig.join("eu1")
        async with (
            rig.enrolment("eu1", one_time, now=rig.now) as first,
            rig.enrolment("eu1", one_time, replica="b", now=rig.now) as second,
        ):
            await asyncio.gather(first.ensure(), second.ensure())
            old = kept(rig, "seed")
            assert all(rig.nkey_file("eu1", r).read_text().strip() == old for r in "ab")
            await first.check()
            assert kept(rig, "seed") == old  # not due
            rig.later = timedelta(days=31)
            await eventually(lambda: attempt(first, second, rig, old))
            new = kept(rig, "seed")
            assert all(rig.nkey_file("eu1", r).read_text().strip() == new for r in "ab")
            assert kept(rig, "nextSeed") == ""
            await eventually(rig.is_loaded)
            assert await rig.is_known(new)
            assert not await rig.is_known(old)


async def attempt(first: Enrolment, second: Enrolment, rig: TrustRig, old: str) -> bool:
    """One check of both replicas; whether the rotation is through on both sides."""
    for enrolment in (first, second):
        with suppress(FleetbusError):  # accounts are just being loaded: the next check repeats it
            await enrolment.check()
    own = public_key(kept(rig, "seed"))
    return kept(rig, "seed") != old and record(rig).key == own and record(rig).next_key == ""


@pytest.mark.parametrize("step", ["nextSeed", "reported", "seed"])
async def test_s3_a_rotation_goes_on_where_a_crash_has_stopped_it(
    fleet: EmulatedFleet, tmp_path: Path, step: str
):
    async with trust_rig(fleet, tmp_path, ["eu1"]) as rig:
        one_time = rig.join("eu1")
        async with rig.enrolment("eu1", one_time) as enrolment:
            await enrolment.ensure()
            old, new = kept(rig, "seed"), make_seed()
            if step != "nextSeed":
                rig.later = timedelta(minutes=11)
                async with rig.login(old, "agent.eu1") as bus:
                    assert (await rig.register(bus, "eu1", old, new)).state == "accepted"
            else:
                rig.later = timedelta(minutes=11)
            stored = {"nextSeed": new}
            if step == "seed":
                stored = {"seed": new, "since": datetime.now(UTC).isoformat()}
                stored["registered"] = public_key(new)
            data = {k: base64.b64encode(v.encode()).decode() for k, v in stored.items()}
            namespace, _, name = MEMBER_SECRET.partition("/")
            fleet["eu1"].patch("v1/secrets", namespace, name, {"data": data})
        async with rig.enrolment("eu1", one_time, now=rig.now) as enrolment:
            await enrolment.ensure()
            await eventually(lambda: attempt(enrolment, enrolment, rig, old))
            assert record(rig).key == public_key(new)


@pytest.mark.slow
async def test_s3_an_agent_that_waits_or_is_refused_says_who_has_to_do_what(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path, ["eu1"], approval=True) as rig:
        one_time = rig.join("eu1")
        async with rig.enrolment("eu1", one_time) as enrolment:
            waiting = asyncio.create_task(enrolment.ensure(), name="ensure")
            await eventually(lambda: record(rig).pending)
            await eventually(lambda: "fleetbus clusters accept eu1" in enrolment.trouble)
            assert not rig.nkey_file("eu1").exists()
            rig.write(record(rig).accepted())
            await asyncio.wait_for(waiting, 30)
            first = kept(rig, "seed")
        # Unjoined and joined anew: another nkey, for whoever has the old one.
        rig.unjoin("eu1")
        again = rig.join("eu1")
        async with rig.enrolment("eu1", again) as enrolment:
            waiting = asyncio.create_task(enrolment.ensure(), name="ensure")
            await eventually(lambda: record(rig).pending)
            rig.write(record(rig).accepted())
            await asyncio.wait_for(waiting, 30)
            assert kept(rig, "seed") != first
            assert not await rig.is_known(first)
        rig.unjoin("eu1")
        await eventually(rig.is_loaded)
        async with rig.enrolment("eu1", make_seed()) as enrolment:
            waiting = asyncio.create_task(enrolment.ensure(), name="ensure")
            await eventually(lambda: "`fleetbus join eu1 --agent`" in enrolment.trouble)
            waiting.cancel()
            await asyncio.wait([waiting])
