"""Agents register once, rotate their nkeys and are revoked at once, on the chart's NATS (S3)."""

from __future__ import annotations

import asyncio
import base64
import gzip
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import read_record
from fleetbus.bus.connection import connected
from fleetbus.errors import BusError
from support.eventually import eventually
from support.rigs.agent_trust import ACCOUNTS, RECORDS, TrustRig, signed, trust_rig

if TYPE_CHECKING:
    from fleetbus_emulator.fleet import EmulatedFleet

pytestmark = pytest.mark.fleet(["hub"], workloads=False)


def record(rig: TrustRig, cluster: str):
    secret = rig.fleet["hub"].get("v1/secrets", RECORDS, f"{cluster}-agent")
    assert secret is not None
    return read_record(secret)


async def test_s3_an_agent_registers_with_a_one_time_nkey_and_works_with_its_own(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path) as rig:
        one_time, seed = rig.join("eu1"), make_seed()
        assert not await rig.is_known(seed)
        async with rig.login(one_time, "registration.eu1") as bus:
            answer = await rig.register(bus, "eu1", one_time, seed)
            assert answer.state == "accepted", answer
            # The one-time nkey ends with that, and with it its connection.
            await eventually(lambda: not bus.is_connected)
        await rig.works(seed, "eu1")
        assert not await rig.is_known(one_time)
        assert record(rig, "eu1").key == public_key(seed)
        assert record(rig, "eu1").one_time == ""


@pytest.mark.slow
async def test_s3_a_one_time_nkey_counts_once_whoever_is_faster(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with (
        trust_rig(fleet, tmp_path) as rig,
        connected(rig.server.access("projector"), name="projector") as other_bus,
    ):
        other = asyncio.create_task(rig.registrar(other_bus).run(), name="another registrar")
        try:
            for number in range(5):
                cluster = f"eu{number}"
                one_time, seeds = rig.join(cluster), [make_seed() for _ in range(8)]
                async with (
                    rig.login(one_time, f"registration.{cluster}") as first,
                    rig.login(one_time, f"registration.{cluster}") as second,
                ):
                    answers = await asyncio.gather(
                        *(
                            rig.register((first, second)[n % 2], cluster, one_time, seed)
                            for n, seed in enumerate(seeds)
                        ),
                        return_exceptions=True,
                    )
                states = [a if isinstance(a, BaseException) else a.state for a in answers]
                # Whoever was too late was refused, or was disconnected.
                assert states.count("accepted") <= 1
                assert "pending" not in states
                assert {s for s in states if isinstance(s, str)} <= {"accepted", "refused"}
                key = record(rig, cluster).key
                assert [public_key(seed) for seed in seeds].count(key) == 1
                if "accepted" in states:
                    assert key == public_key(seeds[states.index("accepted")])
        finally:
            other.cancel()
            await asyncio.wait([other])


async def test_s3_an_expired_one_time_nkey_logs_nobody_in(fleet: EmulatedFleet, tmp_path: Path):
    async with trust_rig(fleet, tmp_path) as rig:
        one_time = rig.join("eu1")
        async with rig.login(one_time, "registration.eu1") as bus:
            rig.later = timedelta(hours=2)
            rig.join("eu2")  # the accounts are written for this, too
            await eventually(lambda: not bus.is_connected)
            assert not await rig.is_known(one_time)


async def test_s3_a_registration_that_is_replayed_changes_nothing(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path) as rig:
        one_time, seed, another = rig.join("eu1"), make_seed(), make_seed()
        body = signed("eu1", one_time, seed)
        async with rig.login(one_time, "registration.eu1") as bus:
            assert (await rig.send(bus, "eu1", body)).state == "accepted"
        async with rig.login(seed, "agent.eu1") as bus:
            assert (await rig.send(bus, "eu1", body)).state == "refused"
            rig.later = timedelta(minutes=11)
            rotation = signed("eu1", seed, another)
            assert (await rig.send(bus, "eu1", rotation)).state == "accepted"
            assert (await rig.send(bus, "eu1", rotation)).state == "accepted"
        async with rig.login(another, "agent.eu1") as bus:
            confirmed = signed("eu1", another, another)
            assert (await rig.send(bus, "eu1", confirmed)).state == "accepted"
            rig.later = timedelta(minutes=30)
            for old in (body, rotation):
                answer = await rig.send(bus, "eu1", old)
                assert answer.state == "refused"
                assert "replaced" in answer.message
            assert record(rig, "eu1").key == public_key(another)
            assert record(rig, "eu1").next_key == ""


@pytest.mark.slow
async def test_s3_credentials_end_with_a_rotation_and_with_unjoin(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path) as rig:
        stolen = await rig.registered("eu1")
        bystander = await rig.registered("eu2")
        async with (
            rig.login(stolen, "agent.eu1") as thief,
            rig.login(bystander, "agent.eu2") as other,
        ):
            rig.later = timedelta(minutes=11)
            seed = make_seed()
            assert (await rig.register(thief, "eu1", stolen, seed)).state == "accepted"
            async with rig.login(seed, "agent.eu1") as agent:
                assert thief.is_connected  # both hold until the new one is in use
                assert (await rig.register(agent, "eu1", seed, seed)).state == "accepted"
                await eventually(lambda: not thief.is_connected)
                assert not await rig.is_known(stolen)
                assert agent.is_connected
                rig.unjoin("eu1")
                await eventually(lambda: not agent.is_connected, timedelta(seconds=2))
                assert not await rig.is_known(seed)
                assert other.disconnects == 0


async def test_s3_where_the_hub_demands_approval_nobody_logs_in_before(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path, approval=True) as rig:
        one_time, seed = rig.join("eu1"), make_seed()
        async with rig.login(one_time, "registration.eu1") as bus:
            answer = await rig.register(bus, "eu1", one_time, seed)
            assert answer.state == "pending"
            assert "fleetbus clusters accept eu1" in answer.message
            await eventually(lambda: not bus.is_connected)
        assert not await rig.is_known(seed)
        assert not await rig.is_known(one_time)
        await eventually(lambda: metric("fleetbus_agents", state="pending") == 1)
        assert metric("fleetbus_agents_pending_seconds") < timedelta(hours=1).total_seconds()
        rig.later = timedelta(days=2)
        rig.join("eu2")  # in the past, for the registrar
        await eventually(lambda: metric("fleetbus_agents", state="expired") == 1)
        waited = timedelta(seconds=metric("fleetbus_agents_pending_seconds"))
        assert timedelta(days=2) <= waited < timedelta(days=2, hours=1)
        rig.later = timedelta()
        rig.write(record(rig, "eu1").accepted())
        await rig.works(seed, "eu1")
        assert metric("fleetbus_agents_pending_seconds") == 0


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_s3_what_is_no_registration_is_refused_with_a_reason(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path) as rig:
        one_time, seed, other = rig.join("eu1"), make_seed(), await rig.registered("eu2")
        before = record(rig, "eu1")
        async with rig.login(one_time, "registration.eu1") as bus:
            for body, problem in (
                (b"", "no registration"),
                (b"x" * 100_000, "no registration"),
                (signed("eu2", one_time, seed), "another cluster"),
                (signed("eu1", one_time, seed, signature=b"x"), "signature is wrong"),
                (signed("eu1", one_time, seed, proof=b""), "proof is wrong"),
                (signed("eu1", one_time, seed, signed_by=public_key(other)), "signature is wrong"),
                (signed("eu1", other, seed), "does not count"),
                (signed("eu1", seed, seed), "does not count"),
                (signed("eu1", one_time, other), "another cluster has this nkey"),
            ):
                answer = await rig.send(bus, "eu1", body)
                assert answer.state == "refused"
                assert problem in answer.message
            refused = record(rig, "eu1")
            assert "does not count" in refused.refused  # one a minute is noted, for people
            assert replace(refused, refused="", refused_at="") == before
            assert (await rig.register(bus, "eu1", one_time, seed)).state == "accepted"
            assert record(rig, "eu1").refused == ""


async def test_a_rotation_that_follows_too_soon_is_refused(fleet: EmulatedFleet, tmp_path: Path):
    """Each costs a reload of all accounts: an agent must not cause one after the other."""
    async with trust_rig(fleet, tmp_path) as rig:
        seed = await rig.registered("eu1")
        async with rig.login(seed, "agent.eu1") as bus:
            answer = await rig.register(bus, "eu1", seed, make_seed())
            assert answer.state == "refused"
            assert "try again later" in answer.message


@pytest.mark.slow
async def test_accounts_that_the_server_refuses_are_taken_back(
    fleet: EmulatedFleet, tmp_path: Path
):
    async with trust_rig(fleet, tmp_path) as rig:
        seed = await rig.registered("eu1")
        good = (tmp_path / "agents.conf").read_bytes()
        namespace, _, name = ACCOUNTS.partition("/")
        nonsense = base64.b64encode(gzip.compress(b'"agent-eu1" { users: [')).decode()
        rig.fleet["hub"].patch(
            "v1/secrets", namespace, name, {"data": {"agents.conf.gz": nonsense}}
        )
        # Somebody else has written it: the next change of a record writes it again.
        await eventually(lambda: (tmp_path / "agents.conf").read_bytes() == good)
        assert await rig.is_known(seed)
        other = await rig.registered("eu2")
        assert await rig.is_known(other)


async def test_s3_accounts_come_and_go_and_no_call_is_lost(fleet: EmulatedFleet, tmp_path: Path):
    async with trust_rig(fleet, tmp_path) as rig:
        seed = await rig.registered("eu1")
        async with rig.login(seed, "agent.eu1") as bus:
            subscription = await bus.nc.subscribe("fleetbus.api.eu1", queue="agents")
            await bus.nc.flush()
            for number in range(10):
                rig.join(f"us{number}")
                for _ in range(50):
                    await rig.projector.publish("fleetbus.api.eu1", b"call")
                await asyncio.sleep(0.05)  # spread over the reloads
                if number > 3:
                    rig.unjoin(f"us{number - 3}")
            await rig.projector.nc.flush()
            await eventually(lambda: subscription.pending_msgs == 500)
            assert bus.disconnects == rig.projector.disconnects == 0


@pytest.mark.slow
async def test_a_registration_without_a_record_reads_nothing(fleet: EmulatedFleet, tmp_path: Path):
    async with trust_rig(fleet, tmp_path) as rig:
        seed = await rig.registered("eu1")
        async with rig.login(seed, "agent.eu1") as bus:
            rig.fleet["hub"].delete("v1/secrets", RECORDS, "eu1-agent")
            try:
                answer = await rig.register(bus, "eu1", seed, make_seed())
            except BusError:
                return  # it was disconnected before
            assert answer.state == "refused"
