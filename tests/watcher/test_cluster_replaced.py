"""Another cluster answers under the name, and somebody consents or does not: rule W13."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from fleetbus.errors import NotAccepted
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.sessions import KUBE_SYSTEM
from fleetbus.process.clock import now_ms
from fleetbus.watchers.cluster_consent import consent, read_refused
from fleetbus_cli.clusters.accept import accept_cluster
from fleetbus_proto.admission import is_too_far_ahead
from fleetbus_proto.events import Incarnation
from fleetbus_proto.keys import kv_accepted, kv_epoch, kv_incarnation
from fleetbus_watcher.cluster_identity import ClusterIdentity
from fleetbus_watcher.errors import ClusterReplaced
from fleetbus_watcher.incarnation import has_moved
from fleetbus_watcher.reachability import Reachability
from support.eventually import eventually
from support.hostile.redirected_address import shared_address
from support.rigs.watcher import Rig, rig_for

SLOW: dict[str, Any] = {
    "backoff_first": timedelta(seconds=30),
    "backoff_cap": timedelta(seconds=30),
}


@pytest.fixture
async def replaced(rig: Rig, nats_url: str) -> AsyncGenerator[tuple[Rig, Rig]]:
    """A cluster that was watched, and the other one that answers under its name now."""
    rig.write("a")
    async with rig.watching():
        await eventually(rig.checkpoint)
    async with rig_for(nats_url, "beta") as other:
        other.write("b")
        yield rig, other


def uid_of(rig: Rig) -> str:
    namespace = rig.cluster.get("v1/namespaces", None, "kube-system")
    assert namespace is not None
    return str(namespace["metadata"]["uid"])


async def is_refused(rig: Rig) -> bool:
    beats = await rig.heartbeats()
    return bool(beats) and (beats[-1].connected, beats[-1].reason) == (False, "ClusterReplaced")


async def has_ends(rig: Rig, number: int) -> bool:
    return len(await rig.ends()) >= number


async def beats(rig: Rig, number: int) -> bool:
    return len(await rig.heartbeats()) >= number


async def accepting(uid: str, rig: Rig) -> int:
    """The exit status of the command, without a hub."""
    return await asyncio.to_thread(
        accept_cluster, "alpha", uid, rig.nats_url, hub=(None, ""), namespace="fleetbus-clusters"
    )


async def test_w13_another_cluster_behind_the_name_stops_everything_until_consent(
    replaced: tuple[Rig, Rig],
):
    rig, other = replaced
    other.start(cluster="alpha")
    await eventually(lambda: is_refused(rig))
    message = (await rig.heartbeats())[-1].message
    assert f"fleetbus clusters accept alpha --uid {uid_of(other)}" in message
    assert await read_refused(rig.kv, "alpha") == uid_of(other)
    assert len(await rig.ends()) == 1
    assert other.requests("list") == []
    await consent(rig.bus, rig.kv, "alpha", uid_of(other))
    await eventually(lambda: has_ends(rig, 2))
    first, second = [end.incarnation for end in await rig.ends()]
    assert second.number > first.number
    assert second.uid == uid_of(other)


async def test_w13_consent_to_another_uid_changes_nothing(replaced: tuple[Rig, Rig]):
    rig, other = replaced
    other.start(cluster="alpha")
    await eventually(lambda: is_refused(rig))
    count = len(await rig.heartbeats())
    asked = len(other.cluster.requests)
    await consent(rig.bus, rig.kv, "alpha", "of-nobody")
    await eventually(lambda: beats(rig, count + 1))
    await eventually(lambda: len(other.cluster.requests) > asked)
    assert await is_refused(rig)
    assert len(await rig.ends()) == 1


async def test_w13_consent_takes_effect_at_once(replaced: tuple[Rig, Rig]):
    rig, other = replaced
    other.start(cluster="alpha", **SLOW)
    await eventually(lambda: is_refused(rig))
    await consent(rig.bus, rig.kv, "alpha", uid_of(other))
    await eventually(lambda: has_ends(rig, 2))


async def test_w13_a_consent_is_used_up_by_the_change_that_it_was_for(replaced: tuple[Rig, Rig]):
    rig, other = replaced
    task = other.start(cluster="alpha")
    await eventually(lambda: is_refused(rig))
    await consent(rig.bus, rig.kv, "alpha", uid_of(other))
    await eventually(lambda: has_ends(rig, 2))
    assert await read_refused(rig.kv, "alpha") == ""
    await other.stop(task)
    rig.start()  # the first one is back, and it is another one now
    await eventually(lambda: is_refused(rig))


async def test_w13_the_old_cluster_needs_no_consent_to_come_back(replaced: tuple[Rig, Rig]):
    rig, other = replaced
    task = other.start(cluster="alpha")
    await eventually(lambda: is_refused(rig))
    await other.stop(task)
    async with rig.watching_on():
        rig.write("c")
        await eventually(rig.is_mirrored)
    assert len(await rig.ends()) == 1


async def test_w13_a_watch_is_not_opened_again_at_another_cluster(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    """Its versions may be higher and its log may reach back, so that nothing else would show it."""
    monkeypatch.setattr(rig.cluster, "compact", lambda: None)
    # All this may take less than the time for which watches share one answer.
    rig.timing = replace(rig.timing, identity_age=timedelta())
    async with rig.watching():
        await eventually(rig.checkpoint)
        rig.write("a")
        await eventually(rig.is_mirrored)
        rig.cluster.swap_uid()
        rig.cluster.close_watches()
        rig.write("foreign")
        await eventually(lambda: is_refused(rig))
        assert [event.name for event in await rig.events()] == ["a"]


async def test_w13_the_command_accepts_what_a_watcher_refuses(
    replaced: tuple[Rig, Rig], capsys: pytest.CaptureFixture[str]
):
    rig, other = replaced
    accept = accepting("", rig)
    assert await accept == 1
    assert "nothing to accept: no other cluster answers as 'alpha'" in capsys.readouterr().err
    typo = accepting("typo", rig)
    assert await typo == 1
    assert "invalid UID 'typo'" in capsys.readouterr().err
    other.start(cluster="alpha")
    await eventually(lambda: is_refused(rig))
    wrong = accepting(uid_of(rig), rig)
    assert await wrong == 1
    captured = capsys.readouterr()
    assert f"has UID {uid_of(other)}, not '{uid_of(rig)}'" in captured.err
    assert len(captured.err.splitlines()) == 1
    assert "may be the one" not in captured.out
    assert await rig.kv.get(kv_accepted("alpha")) is None
    right = accepting("", rig)
    assert await right == 0
    await eventually(lambda: has_ends(rig, 2))


@pytest.mark.parametrize("number", [2**62, 10**30, -1])
async def test_b8_a_number_in_the_bucket_that_nobody_believes_is_not_gone_on_from(
    rig: Rig, number: int
):
    """Whoever has the rights of a watcher may write there, and leave."""
    await rig.kv.put(kv_epoch("alpha", "core", "configmaps"), str(number).encode())
    record = b'{"number":%d,"uid":"%s"}' % (number, uid_of(rig).encode())
    await rig.kv.put(kv_incarnation("alpha"), record)
    rig.write("a")
    async with rig.watching():
        (end,) = await rig.ends()
        for claimed in (end.incarnation.number, end.epoch.id):
            assert not is_too_far_ahead(claimed, now_ms())
            assert claimed > 1_000_000


async def test_b8_nobody_moves_to_a_number_that_nobody_believes(rig: Rig):
    incarnation = Incarnation(now_ms(), "uid")
    for number, is_moved in (
        (incarnation.number, False),
        (incarnation.number + 1, True),
        (2**62, False),
    ):
        record = Incarnation(number, "uid")
        await rig.kv.put(kv_incarnation("alpha"), msgspec.json.encode(record))
        assert await has_moved(rig.kv, "alpha", incarnation) is is_moved
    await rig.kv.delete(kv_incarnation("alpha"))
    assert await has_moved(rig.kv, "alpha", incarnation)


async def test_w13_a_watcher_sends_nothing_through_a_connection_that_leads_to_another_cluster():
    async with shared_address() as address, KubeClient(address.config) as client:
        identity = ClusterIdentity(client, Reachability(client, "alpha", asyncio.Event()))
        await identity.learn()
        await client.get_json("/version")
        address.lead_new_connections_elsewhere()
        answers = await asyncio.gather(
            *(client.get_json("/version") for _ in range(5)), return_exceptions=True
        )
        assert any(isinstance(answer, NotAccepted) for answer in answers)
        with pytest.raises(ClusterReplaced):
            await identity.check()  # though an old connection was open a moment ago
    assert {request.path for request in address.wrong.requests} == {KUBE_SYSTEM}
