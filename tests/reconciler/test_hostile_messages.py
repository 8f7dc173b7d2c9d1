"""No message stops a consumer, whatever is in it: rule B18, by seeded damage and extreme values."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import msgspec
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.process.clock import now_ms
from fleetbus_proto import codec, headers
from fleetbus_proto.admission import admit, subject_of
from fleetbus_proto.errors import InvalidName, MalformedMessage
from fleetbus_proto.events import Incarnation, Message, Rank
from fleetbus_proto.subjects import event_subject
from support.eventually import eventually
from support.rigs.projector import ProjectorRig, heartbeat
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

SEED = 4711
SOON = timedelta(seconds=30)
SOURCE = Source(rank=(5, 5))
SUBJECT = event_subject("eu1", "core", "pods", "prod", "x", SOURCE.added("x", 1).verb)
NUMBERS = (0, -1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
TEXTS = ("", "\0", "\x1f\x1e", "a\nb", "/", "a/b/c", "*", ">", "é☃😀", "x" * 5000, "-", "'\"\\")
VERSIONS = ("", "0", "007", "-1", "abc", "9" * 39, "9" * 40, "1.5", "\u0661", "1\n")
BODIES = (
    *(None, b"", b"x", b"null", b"[]", b"{}", b"\xff", b'{"metadata":null}', b'{"metadata":[]}'),
    *(b'{"metadata":{"labels":{"a":5}}}', b'{"metadata":{"labels":{"\x1f":"\x1e"}}}'),
    b'{"metadata":{"ownerReferences":[{"uid":"' + b"x" * 5000 + b'"}],"labels":{"":""}}}',
    b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
)


def extremes() -> list[Message]:
    """Messages that are well formed, with values that nobody sends."""
    event, end, beat = SOURCE.added("x", 7), SOURCE.end(3), heartbeat()
    changes: list[dict[str, Any]] = [{"object": body} for body in BODIES]
    # Of a cluster that is not in the fleet, and of the one that is: only its own rows may suffer.
    changes += [{"incarnation": Incarnation(n, "u"), "cluster": "mars"} for n in NUMBERS]
    changes += [{"incarnation": Incarnation(n, "u")} for n in (0, -1, -(2**63))]
    changes += [{"epoch": Rank(v, n)} for v in VERSIONS for n in NUMBERS[:4]]
    changes += [{"resource_version": version} for version in VERSIONS]
    fields = ("name", "namespace", "uid", "kind", "scope", "degraded", "observed_at", "cluster")
    changes += [{field: text} for field in fields for text in TEXTS]
    messages: list[Message] = [msgspec.structs.replace(event, **change) for change in changes]
    messages += [msgspec.structs.replace(end, count=n) for n in NUMBERS]
    messages += [msgspec.structs.replace(end, scope=t, epoch=Rank("1", 1)) for t in TEXTS]
    status = beat.resources[0]
    strange = [msgspec.structs.replace(status, resource=t, scope=t, message=t) for t in TEXTS]
    messages += [msgspec.structs.replace(beat, cluster="mars", resources=strange, message=TEXTS[2])]
    messages += [msgspec.structs.replace(beat, cluster="mars", observed_at=t) for t in TEXTS]
    return messages


def damaged(random: Random) -> bytes:
    body = bytearray(
        codec.encode(random.choice((SOURCE.added("y", 9), SOURCE.end(2), heartbeat())))
    )
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(body))
        body[at : at + random.randint(0, 3)] = random.randbytes(random.randint(0, 3))
    return bytes(body)


def undecodable(random: Random, count: int) -> list[bytes]:
    """Bodies that are none; the rest of what damage makes may mean anything, also a deletion."""
    bodies = [b"", b"\xc1", b"\x91" * 70 + b"\xc0", b"\x81\xa1a" * 100_000, bytes(2**20)]
    while len(bodies) < count:
        body = damaged(random)
        try:
            codec.decode(body)
        except MalformedMessage:
            bodies.append(body)
    return bodies


def own_subject(message: Message) -> str:
    try:
        return subject_of(message)
    except InvalidName:
        return SUBJECT


def is_admitted(message: Message) -> bool:
    valid = headers.build(message, MESSAGE_KEY)
    try:
        admit(own_subject(message), valid, codec.encode(message), now_ms=now_ms())
    except MalformedMessage:
        return False
    return True


def counted() -> float:
    """Counters of the member, and of non-members."""
    name = "fleetbus_rejected_messages_total"
    label_sets = [{"consumer": "projector", "cluster": cluster} for cluster in ("eu1", "")]
    return sum(REGISTRY.get_sample_value(name, labels) or 0.0 for labels in label_sets)


async def test_b18_no_message_stops_the_projector_and_the_good_ones_arrive(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    random, before = Random(SEED), counted()
    valid = headers.build(SOURCE.added("x", 1), MESSAGE_KEY)
    bad, odd = undecodable(random, 60), extremes()
    # What is about something that no subject can carry, or from the far future, is refused too.
    refused = [message for message in odd if not is_admitted(message)]
    with capture_logs() as logs:
        for number, body in enumerate(bad):
            await rig.publish_raw(SUBJECT, body, valid | {"Nats-Msg-Id": f"bad-{number}"})
        for number, message in enumerate(odd):
            own_headers = valid | {"Nats-Msg-Id": f"odd-{number}"}
            await rig.publish_raw(own_subject(message), codec.encode(message), own_headers)
        newer = valid | {headers.FORMAT_HEADER: "99", "Nats-Msg-Id": "newer"}
        await rig.publish_raw(SUBJECT, codec.encode(SOURCE.added("x", 1)), newer)
        last = Source(rank=(10**6, 10**6)).added("good", 10**7)
        await rig.publish(last)
        await eventually(rig.is_through, SOON)
    assert counted() - before == len(bad) + len(refused) + 1
    assert "good" in await rig.snapshot.names(clusters=["eu1"])
    aside = [entry for entry in logs if entry["event"] == "message_rejected"]
    assert aside[0]["subject"] == SUBJECT
    assert aside[0]["reason"]
    assert not [entry for entry in logs if entry["event"] == "batch_failed"]
    await rig.resync_requested("could not be read")
