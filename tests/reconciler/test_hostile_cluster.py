"""One watcher with the exact rights of S3 against the others of the fleet: rules B8, B18, W17."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import msgspec
import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.bus.key_value import KeyValue
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms
from fleetbus.watchers.message_key import KEY_BYTES, message_key
from fleetbus_proto import codec, headers
from fleetbus_proto.admission import FURTHEST_AHEAD_MS, subject_of
from fleetbus_proto.events import Incarnation, Message
from fleetbus_proto.keys import kv_message_key
from support.eventually import eventually
from support.rigs.projector import QUICK_TIMING, ProjectorRig, heartbeat, projector_rig
from support.servers.restricted_nats import restricted_server
from support.stores.snapshot import Source
from support.wire.grant_messages import Asker
from support.wire.samples import MESSAGE_KEY

NAMES = ["o0", "o1", "o2", "o3"]
EU2 = Source(cluster="eu2", rank=(100, 1))
WIDGETS = Source(group="example.com", resource="widgets", rank=(100, 1))


@dataclass
class Attack:
    """A fleet of eu1, whose watcher is hostile, and eu2."""

    rig: ProjectorRig
    watcher: Client
    before: dict[str, float]
    """Number of messages of each cluster that were refused in earlier tests."""

    async def send(self, message: Message, **changes: object) -> None:
        """Publish as eu1's watcher: on the subject of the message as it is, its body changed."""
        body = codec.encode(msgspec.structs.replace(message, **changes))
        answer = await self.watcher.request(
            subject_of(message), body, headers=headers.build(message, MESSAGE_KEY)
        )
        assert b'"seq"' in answer.data, answer.data

    async def names(self) -> list[str]:
        return await self.rig.snapshot.names(clusters=["eu2"])

    async def has_rejected(self, count: int) -> None:
        """Everything was handled, and so many messages of eu1 were refused."""
        await eventually(self.rig.is_through)
        assert self.refused("eu1") == count

    def refused(self, cluster: str) -> float:
        return counted(cluster) - self.before[cluster]


def counted(cluster: str) -> float:
    labels = {"consumer": "projector", "cluster": cluster}
    return REGISTRY.get_sample_value("fleetbus_rejected_messages_total", labels) or 0.0


@pytest.fixture
async def attack(
    tmp_path: Path,
    valkey_url: str,
    request: pytest.FixtureRequest,
    quick_projector: None,  # noqa: ARG001
) -> AsyncGenerator[Attack]:
    timing = getattr(request, "param", QUICK_TIMING)
    async with (
        restricted_server(tmp_path) as address,
        projector_rig(f"nats://admin:p@{address}", valkey_url) as rig,
    ):
        rig.timing = timing
        await rig.started("eu1", "eu2")
        await rig.publish(heartbeat("eu1"), heartbeat("eu2"))
        await rig.publish_epoch(EU2, **dict.fromkeys(NAMES, 10))
        await rig.synced("eu2")
        watcher = await nats.connect(f"nats://w:p@{address}", inbox_prefix=b"_INBOX.watcher.eu1")
        try:
            yield Attack(rig, watcher, {name: counted(name) for name in ("eu1", "eu2")})
        finally:
            await watcher.close()


async def test_b8_a_body_about_another_cluster_is_refused_and_counted_for_who_sent_it(
    attack: Attack,
):
    source = Source(cluster="eu1", rank=(100, 1))
    with capture_logs() as logs:
        await attack.send(source.deleted("o1", 500), cluster="eu2")
        await attack.send(source.added("forged", 501), cluster="eu2")
        await attack.send(source.end(0), cluster="eu2")
        await attack.send(heartbeat("eu1"), cluster="eu2", connected=False)
        await attack.has_rejected(4)
    assert await attack.names() == NAMES
    record = await attack.rig.snapshot.reader.cluster("eu2")
    assert record is not None
    assert record.connected
    rejected = [entry for entry in logs if entry["event"] == "message_rejected"]
    assert {(entry["cluster"], "subject" in entry["reason"]) for entry in rejected} == {
        ("eu1", True)
    }
    assert attack.refused("eu2") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "o9"},
        {"namespace": "other"},
        {"resource": "services"},
        {"group": "apps"},
        {"verb": "deleted"},
    ],
    ids=str,
)
async def test_b8_each_part_of_the_subject_is_that_of_the_body(
    attack: Attack, changes: dict[str, str]
):
    await attack.send(Source(cluster="eu1").added("o1", 5), **changes)
    await attack.has_rejected(1)
    assert await attack.rig.snapshot.names(clusters=["eu1"]) == []


async def test_w17_a_type_cannot_be_reported_as_removed_for_another_cluster_nor_a_built_in_one(
    attack: Attack,
):
    widgets = Source(cluster="eu1", group="example.com", resource="widgets", rank=(600, 99))
    await attack.rig.publish_epoch(Source(cluster="eu1", rank=(100, 1)), a=10, b=10)
    await attack.rig.synced("eu1")
    await attack.send(widgets.end(0, removed=True), cluster="eu2", group="core", resource="pods")
    await attack.send(Source(cluster="eu1", rank=(600, 99)).end(0, removed=True))
    await attack.send(dataclasses.replace(widgets, rank=(601, 99)).end(3, removed=True))
    await attack.has_rejected(3)
    assert await attack.names() == NAMES
    assert await attack.rig.snapshot.names(clusters=["eu1"]) == ["a", "b"]
    assert attack.rig.deleted == []


async def test_b8_numbers_further_ahead_than_a_day_are_refused(attack: Attack):
    rig, limit = attack.rig, now_ms() + FURTHEST_AHEAD_MS
    far, near = limit + 60_000, limit - 60_000
    for number in (far, 2**63, 2**64 - 1):
        source = Source(cluster="eu2", incarnation=number)
        await rig.publish(source.added("z", 1), source.end(0))
        beat = heartbeat("eu2")
        await rig.publish(msgspec.structs.replace(beat, incarnation=Incarnation(number, "x")))
    await rig.publish(Source(cluster="eu2", rank=(10**9, far)).end(0))
    await eventually(rig.is_through)
    assert attack.refused("eu2") == 10
    # What the cluster says itself is applied as before, also of a clock that is a bit fast.
    await rig.publish_epoch(Source(cluster="eu2", incarnation=near, rank=(10**6, near)), true=9)
    await eventually(lambda: has_names(attack, "true"))


async def has_names(attack: Attack, *names: str) -> bool:
    return await attack.names() == list(names)


@pytest.mark.parametrize(
    "subject",
    [
        "fleetbus.events.eu1.core.%2A.-.n.added",
        "fleetbus.events.eu1.%3E.pods.-.n.added",
        "fleetbus.epochs.eu1.core.a_b%20c",
        "fleetbus.status.eu1.x",
        "fleetbus.events.eu1.x",
    ],
)
async def test_b18_what_names_nothing_legal_asks_for_nothing_and_stops_nobody(
    attack: Attack, subject: str
):
    await attack.watcher.request(subject, b"garbage", timeout=3)
    await attack.rig.publish(EU2.added("after", 700))
    await eventually(lambda: has_names(attack, "after", *NAMES))
    await attack.has_rejected(1)


@pytest.mark.parametrize("place", [("core", "*"), ("core", "a b"), ("..", "x")], ids=str)
async def test_b18_a_well_formed_message_about_no_resource_asks_for_nothing_and_stops_nobody(
    attack: Attack, place: tuple[str, str]
):
    group, plural = place
    source = Source(cluster="eu1", group=group, resource=plural, rank=(5, 5))
    await attack.send(source.added("n", 7))
    await attack.send(source.end(3))
    beat = heartbeat("eu1")
    status = msgspec.structs.replace(beat.resources[0], group=group, resource=plural)
    await attack.send(msgspec.structs.replace(beat, resources=[status, *beat.resources]))
    await attack.rig.publish(EU2.added("after", 700))
    await eventually(lambda: has_names(attack, "after", *NAMES))
    await attack.rig.resync_requested(
        "no complete list", "eu1"
    )  # of the pods, which the heartbeat names too


async def test_b18_a_name_in_a_heartbeat_that_no_line_of_nats_can_hold_stops_nobody(
    attack: Attack,
):
    """The server would cut the projector's connection, which ends it, at each start again."""
    beat = heartbeat("eu1")
    long = [{"resource": "x" * 70_000}, {"group": "x" * 70_000}, {"group": ".".join(["x"] * 5_000)}]
    statuses = [msgspec.structs.replace(beat.resources[0], **change) for change in long]
    await attack.send(msgspec.structs.replace(beat, resources=[*statuses, *beat.resources]))
    await attack.rig.publish(EU2.added("after", 700))
    await eventually(lambda: has_names(attack, "after", *NAMES))
    await attack.rig.resync_requested("no complete list", "eu1")
    assert attack.rig.bus.disconnects == 0


@pytest.mark.parametrize("plural", ["*", "x" * 3_900])
async def test_b18_the_end_of_a_type_that_no_server_has_stops_nobody(attack: Attack, plural: str):
    rig = attack.rig
    with capture_logs() as logs:
        strange = Source(cluster="eu1", group="g.example.com", resource=plural, rank=(600, 99))
        await attack.send(strange.end(0, removed=True))
        await rig.publish_epoch(Source(cluster="eu2", rank=(200, 2)), o0=10, o1=10, o2=10)
        await eventually(lambda: has_names(attack, "o0", "o1", "o2"))
    assert [entry for entry in logs if entry["event"] == "sweep_failed"] == []
    assert rig.bus.disconnects == 0


async def test_b18_a_resync_request_that_cannot_be_written_now_stops_nobody_and_is_written_later(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
):
    rig, put = attack.rig, KeyValue.put

    async def refuse(*_: object, **__: object) -> int:
        raise BusError("the bucket has no leader")

    monkeypatch.setattr(KeyValue, "put", refuse)
    rig.resource = "core/services"
    subject = subject_of(Source(cluster="eu1", resource="services").added("n", 1))
    await attack.watcher.request(subject, b"garbage", timeout=3)
    await rig.publish(EU2.added("after", 700))
    await eventually(lambda: has_names(attack, "after", *NAMES))
    assert await rig.resync_request("eu1") is None
    monkeypatch.setattr(KeyValue, "put", put)
    await rig.resync_requested("could not be read", "eu1")


async def test_b18_refused_messages_without_end_are_logged_now_and_then(attack: Attack):
    with capture_logs() as logs:
        for _ in range(50):
            await attack.watcher.publish("fleetbus.events.eu1.x", b"garbage")
        await attack.watcher.flush()
        await eventually(lambda: attack.refused("eu1") == 50)
    assert len([entry for entry in logs if entry["event"] == "message_rejected"]) == 1


async def test_w17_no_type_has_ended_whose_crd_is_there(attack: Attack):
    rig = attack.rig
    crds = Source(group="apiextensions.k8s.io", resource="customresourcedefinitions", rank=(100, 1))
    crd = "widgets.example.com"
    await rig.publish(crds.listed(crd, 10, namespace=""), crds.end(1))
    await rig.publish_epoch(WIDGETS, a=10)
    await rig.publish(dataclasses.replace(WIDGETS, rank=(200, 2)).end(0, removed=True))
    await eventually(rig.is_through)
    assert await has_widget(rig)
    await rig.publish(crds.deleted(crd, 190, namespace=""))
    await eventually(lambda: is_swept(rig))


async def has_widget(rig: ProjectorRig) -> bool:
    return bool(await rig.snapshot.reader.count("eu1", "example.com/widgets"))


async def is_swept(rig: ProjectorRig) -> bool:
    return not await has_widget(rig)


async def test_b3_nobody_takes_the_id_of_another_clusters_deletion(attack: Attack):
    """The hostile watcher knows all of eu2's change, and not the secret of eu2's ids."""
    rig, true = attack.rig, EU2.deleted("o1", 500)
    own_key = await message_key(rig.connections.kv, "eu1")
    harmless = Source(cluster="eu1").added("harmless", 5)
    for number, key in enumerate((own_key, MESSAGE_KEY)):
        taken = headers.build(harmless, own_key) | {"Nats-Msg-Id": headers.message_id(true, key)}
        subject = f"{subject_of(harmless).removesuffix('.added')}{number}.added"
        await attack.watcher.request(subject, codec.encode(harmless), headers=taken)
    sent = headers.build(true, await message_key(rig.connections.kv, "eu2"))
    await rig.publish_raw(subject_of(true), codec.encode(true), sent)
    await eventually(lambda: has_names(attack, "o0", "o2", "o3"))


async def test_b3_what_a_sweep_publishes_has_the_clusters_secret_too(attack: Attack):
    rig, published_headers = attack.rig, list[dict[str, str]]()

    async def note(message: Msg) -> None:
        published_headers.append(message.headers or {})

    await rig.bus.nc.subscribe("fleetbus.events.eu2.*.*.*.o3.deleted", cb=note)
    await rig.publish_epoch(Source(cluster="eu2", rank=(200, 2)), o0=10, o1=10, o2=10)
    await eventually(lambda: published_headers)
    (event,) = rig.deleted
    assert published_headers[0]["Nats-Msg-Id"] == headers.message_id(
        event, await message_key(rig.connections.kv, "eu2")
    )


async def test_b3_one_key_for_all_who_publish_for_a_cluster(attack: Attack):
    kv = attack.rig.connections.kv
    name = kv_message_key("eu7")
    keys = await asyncio.gather(*(message_key(kv, "eu7") for _ in range(8)))
    assert len(set(keys)) == 1
    assert len(keys[0]) == KEY_BYTES
    await kv.put(name, b"what somebody else wrote")
    again = await message_key(kv, "eu7")
    assert again not in {keys[0], b"what somebody else wrote"}
    assert await message_key(kv, "eu7") == again


DEEP = b'{"requests":[{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}"
ASK = '{"requests":[{"replica":"a","since":%s,"patience":%s,"bytes":%s,"answer":%s}]}'
ANSWER = '{"received":%s,"at":1,"granted":true,"bytes":%s}'
NINES = "9" * 400
ASKS = [
    b"",
    b"\xff",
    DEEP,
    b'{"requests":[{"replica":"\xff","since":1,"patience":1}]}',
    b'{"requests":[' + b'{"replica":"a","since":1,"patience":1},' * 5_000 + b"null]}",
    *(
        (ASK % (since, patience, size, answer)).encode()
        for since, patience, size, answer in (
            (NINES, 1, 1, "null"),
            (-1, 1, 1, "null"),
            (1, "1e999", 1, "null"),
            (1, -1, 1, "null"),
            (1, 1, NINES, "null"),
            (1, 1, 1, ANSWER % (1, NINES)),
            (1, 1, 1, ANSWER % (NINES, 1)),
            (1, 1, 1, ANSWER % (-1, -1)),
        )
    ),
]


@pytest.mark.parametrize("value", ASKS, ids=lambda value: repr(value[:60]))
async def test_b18_no_ask_of_one_cluster_keeps_another_from_its_grant(attack: Attack, value: bytes):
    rig = attack.rig
    answer = await attack.watcher.request("$KV.FLEETBUS_STATE.eu1.grant.core.pods", value)
    assert b'"seq"' in answer.data
    honest = Asker(rig.connections.kv, "eu2")
    await honest.ask()
    await eventually(honest.is_granted)
    await rig.stop()  # also after a start, which reads all keys
    rig.start()
    other = Asker(rig.connections.kv, "eu2", resource="services")
    await other.ask()
    await eventually(other.is_granted)


@pytest.mark.parametrize("key", ["a%20b.pods", "%2A.pods", "core.~", "core.pods.x", "_.pods"])
async def test_b18_no_name_of_a_key_keeps_another_from_its_grant(attack: Attack, key: str):
    rig = attack.rig
    value = b'{"requests":[{"replica":"a","since":1,"patience":1}]}'
    answer = await attack.watcher.request(f"$KV.FLEETBUS_STATE.eu1.grant.{key}", value)
    assert b'"seq"' in answer.data
    honest = Asker(rig.connections.kv, "eu2")
    await honest.ask()
    await eventually(honest.is_granted)
    await rig.stop()
    rig.start()
    other = Asker(rig.connections.kv, "eu2", resource="services")
    await other.ask()
    await eventually(other.is_granted)


TIMES = (
    "9999-12-31T23:59:59.999999-23:59",
    "0001-01-01T00:00:00+23:59",
    "x",
    "2026-02-30T00:00:00Z",
)


@pytest.mark.parametrize("time", TIMES)
async def test_b18_no_time_in_a_heartbeat_harms_a_reader(attack: Attack, time: str):
    rig = attack.rig
    source = Source(cluster="eu1", rank=(100, 1))
    await rig.publish_epoch(source, a=10)
    await rig.synced("eu1")
    beat = heartbeat("eu1", last_received=time, lag_seconds=float("nan"), resource_version="x")
    await attack.send(msgspec.structs.replace(beat, observed_at=time))
    await rig.publish(EU2.added("after", 700))
    await eventually(rig.is_through)
    assert await has_names(attack, "after", *NAMES)
    freshness = await rig.snapshot.reader.freshness(["eu1", "eu2"], "core/pods")
    assert set(freshness) == {"eu1", "eu2"}
    assert len(await rig.snapshot.reader.clusters()) == 2


async def test_p1_a_cluster_that_leaves_and_joins_is_rid_of_what_a_hostile_watcher_left(
    attack: Attack,
):
    """Numbers of tomorrow and versions beyond all others, of its own cluster: those are its own."""
    rig = attack.rig
    forged = Source(cluster="eu1", incarnation=now_ms() + FURTHEST_AHEAD_MS - 60_000)
    await attack.send(forged.added("forged", "9" * 38))
    await attack.send(dataclasses.replace(forged, rank=("9" * 38, 1)).end(0))
    true = Source(cluster="eu1", rank=(100, 1))
    await rig.publish_epoch(true, a=10)
    await eventually(rig.is_through)
    assert await rig.snapshot.names(clusters=["eu1"]) == ["forged"]
    rig.provider.tell("eu2")
    await eventually(lambda: rig.has_members("eu2"))
    rig.provider.tell("eu1", "eu2")
    await eventually(lambda: rig.has_members("eu1", "eu2"))
    await rig.publish_epoch(dataclasses.replace(true, rank=(101, 2)), a=10)
    await rig.synced("eu1", epoch="101 2")
    assert await rig.snapshot.names(clusters=["eu1"]) == ["a"]


@pytest.mark.parametrize(
    "attack", [replace(QUICK_TIMING, resync_repeated=timedelta())], ids=[""], indirect=True
)
async def test_b8_a_list_that_is_dropped_for_an_unused_number_requests_a_higher_one(
    attack: Attack,
):
    rig = attack.rig
    true = Source(cluster="eu1", rank=(100, 1))
    await rig.publish_epoch(true, a=10)
    await rig.synced("eu1")
    forged = Source(cluster="eu1", incarnation=now_ms() + FURTHEST_AHEAD_MS - 60_000)
    await attack.send(forged.added("forged", 11))
    await rig.publish_epoch(dataclasses.replace(true, rank=(200, 2)), a=10)
    request = await rig.resync_requested("lower than one that was seen", "eu1")
    assert request.incarnation == forged.incarnation
    healed = Source(
        cluster="eu1", incarnation=request.incarnation + 1, rank=(201, request.min_epoch)
    )
    await rig.publish_epoch(healed, a=10)
    await eventually(lambda: has_only(rig, "a"))


async def has_only(rig: ProjectorRig, *names: str) -> bool:
    return await rig.snapshot.names(clusters=["eu1"]) == list(names)
