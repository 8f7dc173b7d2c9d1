"""W7 against a watcher that writes what it likes into the grant keys of its cluster, eu1."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from fleetbus_proto.keys import kv_grant
from support.eventually import eventually, stays
from support.rigs.projector import ProjectorRig
from support.stores.snapshot import Source
from support.wire.grant_messages import Asker

MIB = 1024**2
HUGE = 2**62
RESOURCES = [f"r{number}" for number in range(10)]
GRANTED = {"received": 0, "at": 0, "granted": True, "bytes": HUGE}


def ask(replica: str = "r1", **fields: Any) -> dict[str, Any]:
    return {"replica": replica, "since": 1, "patience": 60, **fields}


async def write(rig: ProjectorRig, *asks: dict[str, Any], resource: str = "pods") -> None:
    value = msgspec.json.encode({"requests": asks})
    await rig.connections.kv.put(kv_grant("eu1", "core", resource), value)


@pytest.mark.parametrize(
    "forged",
    [
        ask(answer=GRANTED),
        ask(answer=GRANTED, epoch=5),
        ask(bytes=HUGE, epoch=5),
        ask(answer=GRANTED, epoch=HUGE, bytes=HUGE),
    ],
    ids=["granted", "granted and begun", "begun", "everything"],
)
async def test_w7_forged_grants_of_one_cluster_hold_up_no_other(
    rig: ProjectorRig, forged: dict[str, Any]
):
    rig.settings |= {"stream_max_bytes": 20 * MIB}
    await rig.started("eu1", "eu2")
    for resource in RESOURCES:
        await write(rig, *(forged | {"replica": r} for r in RESOURCES), resource=resource)
    for honest in (
        Asker(rig.connections.kv, "eu2"),
        Asker(rig.connections.kv, "eu2", resource="services"),
    ):
        await honest.ask(MIB)
        await eventually(honest.is_granted)


async def test_w7_forged_grants_of_one_cluster_hold_up_no_other_after_a_restart(
    rig: ProjectorRig,
):
    rig.settings |= {"stream_max_bytes": 20 * MIB}
    await rig.started("eu1", "eu2")
    await rig.stop()
    for resource in RESOURCES:
        await write(rig, ask(answer=GRANTED, epoch=5), resource=resource)
    rig.start()
    honest = Asker(rig.connections.kv, "eu2")
    await honest.ask(MIB)
    await eventually(honest.is_granted)


async def test_w7_a_forged_place_in_the_line_is_not_believed(
    rig: ProjectorRig,
):
    rig.timing = replace(rig.timing, grant_begun=timedelta(minutes=1))
    rig.settings |= {"epochs_at_once": 1}
    await rig.started("eu1", "eu2", "eu3")
    running, honest, forger = (Asker(rig.connections.kv, name) for name in ("eu3", "eu2", "eu1"))
    await running.ask()
    await eventually(running.is_granted)
    await honest.ask()
    await eventually(honest.is_received)
    await write(rig, ask(answer={"received": 0, "at": 0}))
    await eventually(lambda: is_answered(forger))
    await running.leave()
    await eventually(honest.is_granted)
    assert not await forger.is_granted()


async def is_answered(asker: Asker) -> bool:
    """Whether the projector has written over a forged answer."""
    grant = await asker.found()
    return grant is not None and grant.answer is not None and grant.answer.received > 0


@pytest.mark.slow
async def test_w7_asks_that_claim_everything_hold_up_the_others_only_for_a_time(
    rig: ProjectorRig,
):
    rig.timing = replace(rig.timing, blocking=timedelta(seconds=1.5))
    rig.settings |= {"stream_max_bytes": 20 * MIB}
    await rig.started("eu1", "eu2")
    for resource in RESOURCES:
        await write(rig, ask(bytes=HUGE), resource=resource)
    claims = [Asker(rig.connections.kv, resource=resource) for resource in RESOURCES]

    async def granted() -> list[Asker]:
        return [claim for claim in claims if await claim.is_granted()]

    (running,) = await eventually(granted)
    await running.begin(5)
    honest = Asker(rig.connections.kv, "eu2")
    await honest.ask(MIB)
    await eventually(honest.is_received)
    assert not await honest.is_granted(), "the large one runs alone"
    await eventually(honest.is_granted)
    assert await granted() == [running], "the other claims wait for it"


async def test_w7_a_large_epoch_gets_its_turn_although_a_hostile_one_never_ends(
    rig: ProjectorRig,
):
    rig.timing = replace(rig.timing, blocking=timedelta(seconds=0.5))
    rig.settings |= {"stream_max_bytes": 20 * MIB}
    await rig.started("eu1", "eu2")
    await write(rig, ask(answer=GRANTED | {"bytes": 1}, epoch=5))
    endless = Asker(rig.connections.kv)
    large, next_one = Asker(rig.connections.kv, "eu2"), Asker(rig.connections.kv, "eu3")
    await eventually(endless.is_begun)
    await large.ask(500 * MIB)
    await eventually(large.is_received)
    await next_one.ask(1)
    await eventually(large.is_granted)
    await large.begin(6)
    await eventually(next_one.is_granted)


async def test_w7_a_large_ask_that_never_fits_is_passed_over(
    rig: ProjectorRig,
):
    rig.timing = replace(
        rig.timing, blocking=timedelta(seconds=0.5), grant_begun=timedelta(minutes=1)
    )
    rig.settings |= {"stream_max_bytes": 20 * MIB}
    await rig.started("a", "b", "c", "d")
    askers = [Asker(rig.connections.kv, name) for name in "abcd"]
    for each_asker, size in zip(askers, (4, 3, 500, 1), strict=True):
        await each_asker.ask(size * MIB)
        await eventually(each_asker.is_received)
    await eventually(askers[3].is_granted)
    assert not await askers[2].is_granted()


@pytest.mark.parametrize(
    "value", ['{"requests":[{"replica":"a","since":-1,"patience":1}]}', "[", "{"]
)
async def test_w7_what_is_no_ask_is_counted(rig: ProjectorRig, value: str):
    await rig.started("eu1")
    before = refused()
    await rig.connections.kv.put(kv_grant("eu1", "core", "pods"), value.encode())
    await eventually(lambda: refused() > before)


def refused() -> float:
    return REGISTRY.get_sample_value("fleetbus_grant_keys_refused_total") or 0.0


async def test_w7_more_asks_than_a_cluster_needs_are_refused_and_cost_no_turn(rig: ProjectorRig):
    await rig.started("eu1", "eu2")
    before = refused()
    burst = [ask(f"r{number}", epoch=5) for number in range(200)]
    for resource in RESOURCES:
        await write(rig, *burst, resource=resource)
    # At least so often: the projector reads all keys twice at its start.
    await eventually(lambda: refused() >= before + len(RESOURCES) - 2)
    await eventually(lambda: REGISTRY.get_sample_value("fleetbus_epochs_granted") == 400)
    honest = Asker(rig.connections.kv, "eu2")
    await honest.ask()
    await eventually(honest.is_granted)
    await write(rig, resource=RESOURCES[0])  # room for others of the cluster
    await eventually(lambda: REGISTRY.get_sample_value("fleetbus_epochs_granted") == 201)


async def test_w7_an_impatient_ask_is_not_answered_at_each_turn(
    rig: ProjectorRig,
):
    rig.timing = replace(rig.timing, grant_turns=timedelta(milliseconds=10))
    rig.settings |= {"epochs_at_once": 1}
    await rig.started("eu1", "eu2")
    running = Asker(rig.connections.kv, "eu2")
    await running.ask()
    await eventually(running.is_granted)
    await running.begin(5)
    impatient = Asker(rig.connections.kv)
    await impatient.ask(patience=1e-9)
    await eventually(impatient.is_received)
    first = await impatient.found()
    await stays(first, impatient.found)


async def test_w7_an_endless_epoch_of_one_cluster_is_no_more_than_its_share(rig: ProjectorRig):
    rig.settings |= {"epochs_at_once": 3, "epochs_per_cluster": 2, "stream_max_bytes": 20 * MIB}
    await rig.started("eu1", "eu2")
    for resource in RESOURCES:
        await write(rig, ask(answer=GRANTED, epoch=5), resource=resource)
    await rig.publish(Source(cluster="eu1", rank=(9, 5)).listed("a", 1))
    honest = [Asker(rig.connections.kv, "eu2"), Asker(rig.connections.kv, "eu3")]
    for each_asker in honest:  # one slot is left, and they take turns
        await each_asker.ask(MIB)
        await eventually(each_asker.is_granted)
        await each_asker.leave()
