"""Objects that any user of a member may write, on their way to a queue: none stops a batch (B18).

What raises on the way holds up everything behind it, of all clusters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from fleetbus.ownership import OWNER_ANNOTATION
from fleetbus.workqueue import RedisQueue
from fleetbus.workqueue.queue import Lease
from fleetbus_proto import codec
from fleetbus_proto.errors import ContractError
from fleetbus_proto.events import Event
from support.rigs.intake import EU1, PODS, WEB_APP, IntakeRig

SEEDS = range(2)
ROUNDS = 150
VERBS = ("added", "modified", "deleted", "listed")
TEXTS = ("", ".", "..", "x", "a b", "a:b", "a|b", "a/b", "*", ">", "%2F", "{}", "é☃", "\x00\x1f\n")
LONG = ("x" * 64, "x" * 70_000)
ODD: tuple[Any, ...] = (None, 5, [], {}, {"a": 1}, True, 1e300)
BODIES = (
    b"",
    b"null",
    b"[]",
    b'"x"',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"metadata":[]}',
    b'{"metadata":null}',
    b'{"metadata":{"labels":{"app":"web"}},"n":' + b"9" * 10_000 + b"}",
    b'{"metadata":{"labels":{"app":"web"}},"n":1e99999}',
    b'{"metadata":{"labels":{"app":"web"}},"s":"\\ud800"}',
    b'{"metadata":{"labels":{"app":"web"},"labels":{"app":"x"}}}',
)


def text(random: Random) -> str:
    return random.choice((*TEXTS, *TEXTS, *LONG))


def owner_mark(random: Random) -> Any:
    """Values that a user may write into the owner annotation."""
    owner = {"apiVersion": "v1", "kind": "Pod", "namespace": "n", "name": "x", "uid": "u"}
    owner |= {"clusterName": "eu1"}
    for field in random.sample(sorted(owner), 2):
        owner[field] = random.choice((text(random), *ODD))
    return random.choice((json.dumps(owner), text(random), "[" * 10_000, *ODD))


def body(random: Random) -> bytes:
    if random.random() < 0.2:
        return random.choice(BODIES)
    labels = {"app": random.choice(("web", "web", text(random), *ODD))}
    metadata: dict[str, Any] = {"name": "o", "labels": random.choice((labels, labels, *ODD))}
    marks = {OWNER_ANNOTATION: owner_mark(random)}
    metadata["annotations"] = random.choice((marks, marks, marks, *ODD))
    owners = [{"kind": "Pod", "name": text(random), "uid": random.choice((text(random), *ODD))}]
    metadata["ownerReferences"] = random.choice((owners, *ODD))
    return json.dumps({"metadata": metadata}).encode()


def events(random: Random) -> Iterator[Event]:
    """Those that a bus carries: what its codec refuses comes to no intake."""
    for version in range(ROUNDS):
        verb, name = random.choice(VERBS), random.choice(("o1", "o2", text(random)))
        namespace = random.choice(("prod", "prod", text(random)))
        event = EU1.event(verb, name, version + 1, namespace=namespace, body=body(random))
        try:
            decoded = codec.decode(codec.encode(event))
        except ContractError:
            continue
        if isinstance(decoded, Event):
            yield decoded


async def taken(queue: RedisQueue) -> list[Lease]:
    """All that the queue hands out, done with."""
    taken_leases: list[Lease] = []
    while leases := await queue.take(200):
        taken_leases += leases
        await queue.done(leases)
    return taken_leases


@pytest.mark.parametrize("seed", SEEDS)
async def test_b18_no_object_of_a_user_stops_the_way_to_the_queue(rig: IntakeRig, seed: int):
    rig.controller.watch(PODS, selector="app=web")
    rig.controller.watch(PODS, annotation_selector="a!=b")
    rig.controller.watch_owned(PODS)
    rig.start()
    await rig.snapshot.set_up("eu1")
    hostile = list(events(Random(seed)))
    assert len(hostile) > ROUNDS / 2
    for number, event in enumerate(hostile):
        sound = EU1.added(f"sound-{number}", number + 1, metadata=WEB_APP)
        await rig.snapshot.apply(event, sound)
        await rig.intake.take([event, sound])
    requests = [lease.request for lease in await taken(rig.queue)]
    names = {request.name for request in requests if request.namespace == "prod"}
    assert {f"sound-{number}" for number in range(len(hostile))} <= names
    assert len(requests) > len(hostile)
    assert set(rig.resyncs) <= {"eu1"}  # whose objects they are
