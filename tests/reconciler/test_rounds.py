"""Messages of different clusters are handled at once, those of one in their order (rule P9)."""

from __future__ import annotations

import random

import msgspec

from fleetbus.bus.buffer import Delivery
from fleetbus_proto.admission import subject_of
from fleetbus_proto.events import Heartbeat, Message
from fleetbus_reconciler.projector.rounds import rounds
from support.rigs.projector import heartbeat
from support.stores.snapshot import Source
from support.wire.samples import GOLDEN

CLUSTERS = ("eu1", "us1", "ap1")
KINDS = ("event", "end", "page", "heartbeat")


def message_of(cluster: str, kind: str, number: int) -> Message:
    source = Source(cluster=cluster)
    if kind == "event":
        return source.modified(f"o{number}", number)
    if kind == "end":
        return source.end(number)
    if kind == "page":
        return msgspec.structs.replace(GOLDEN["audit-page"], cluster=cluster, page=number)
    return heartbeat(cluster)


def deliveries(*messages: Message) -> list[Delivery]:
    return [Delivery(m, n, subject_of(m), {}) for n, m in enumerate(messages)]


def handled(batch: list[Delivery]) -> list[Message]:
    """Messages in an order in which they may be handled."""
    messages: list[Message] = []
    for each_round in rounds(batch):
        messages += each_round.events
        messages += [d.message for each in each_round.others.values() for d in each if d.message]
    return messages


def test_heartbeats_divide_no_batch_of_events():
    all_rounds = list(
        rounds(
            deliveries(
                message_of("eu1", "event", 1),
                message_of("eu1", "heartbeat", 2),
                message_of("us1", "event", 3),
                message_of("us1", "heartbeat", 4),
                message_of("eu1", "event", 5),
            )
        )
    )
    assert len(all_rounds) == 1
    assert [event.name for event in all_rounds[0].events] == ["o1", "o3", "o5"]
    assert list(all_rounds[0].others) == ["eu1", "us1"]


def test_no_event_overtakes_an_end_of_its_cluster_but_one_of_another_does():
    end, page = message_of("eu1", "end", 1), message_of("us1", "page", 1)
    batch = deliveries(end, message_of("us1", "event", 2), message_of("eu1", "event", 3))
    assert [event.name for each_round in rounds(batch) for event in each_round.events] == [
        "o2",
        "o3",
    ]
    assert len(list(rounds(batch))) == 2
    assert len(list(rounds(deliveries(page, message_of("us1", "event", 2))))) == 2


def test_a_message_that_cannot_be_read_is_handled_with_its_cluster():
    subject = subject_of(message_of("eu1", "event", 1))
    broken = Delivery(None, 1, subject, {}, "no msgpack")
    [only] = rounds([broken, *deliveries(message_of("eu1", "heartbeat", 2))])
    assert [d.message is None for d in only.others["eu1"]] == [True, False]


def test_p9_all_is_handled_once_and_but_for_heartbeats_in_the_order_of_its_cluster():
    chance = random.Random(7)
    for _ in range(300):
        batch = deliveries(
            *(
                message_of(chance.choice(CLUSTERS), chance.choice(KINDS), number)
                for number in range(chance.randrange(12))
            )
        )
        sent = [delivery.message for delivery in batch]
        messages = handled(batch)
        assert sorted(map(id, messages)) == sorted(map(id, sent))
        for cluster in CLUSTERS:
            assert _ordered(messages, cluster) == _ordered(sent, cluster)


def _ordered(messages: list[Message | None] | list[Message], cluster: str) -> list[Message]:
    return [m for m in messages if m and m.cluster == cluster and not isinstance(m, Heartbeat)]
