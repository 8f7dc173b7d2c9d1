"""Votes on a real NATS server (rule D19)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from redis.asyncio import Redis

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_distribution
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_distributor.hub.rollout_state import GateState
from fleetbus_distributor.rollout.advance import Finding
from fleetbus_distributor.rollout.votes import Votes, VoteWatch, read_vote
from fleetbus_proto.subjects import vote_subject, votes_prefix
from fleetbus_proto.votes import Vote, encode_vote
from support.rigs.distributor import Rig
from support.rows import each_row

PREFIX = votes_prefix("default", "web", "1-a")
SUBJECT = vote_subject(PREFIX, "canary", "tests")


async def test_d19_the_last_vote_on_a_subject_counts(nats_url: str):
    async with connected(nats_url, name="distributor") as bus:
        votes = Votes(bus)
        assert "there is no stream FLEETBUS_DISTRIBUTION" in (await votes(SUBJECT)).message
        await ensure_distribution(bus)
        await ensure_distribution(bus)
        assert await votes(SUBJECT) == Finding(GateState.PENDING)
        for vote in (Vote(vote="pass"), Vote(vote="fail", reason="slow")):
            await bus.request(SUBJECT, encode_vote(vote))
        assert await votes(SUBJECT) == Finding(GateState.FAILED, "slow")
        other = vote_subject(votes_prefix("default", "web", "2-a"), "canary", "tests")
        assert await votes(other) == Finding(GateState.PENDING)


async def test_d19_a_vote_enqueues_its_resource(nats_url: str, valkey_url: str, rig: Rig):
    async with connected(nats_url, name="distributor") as bus, Redis.from_url(valkey_url) as redis:
        queue = RedisQueue(redis, "distributor")
        watch = VoteWatch(bus=bus, fleet=rig.fleet, queue=queue, controller="distributor")
        task = asyncio.create_task(watch.run(), name="votes")
        try:
            await asyncio.sleep(0)  # it subscribes
            await bus.publish("fleetbus.votes.x", b"")
            await bus.publish(SUBJECT, encode_vote(Vote(vote="pass")))
            (taken,) = await queue.take(1, wait=timedelta(seconds=5))
            assert (taken.request.namespace, taken.request.name) == ("default", "web")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await queue.aclose()


@each_row("body", [b"yes", b'{"vote": "yes"}', b'{"pass": true}', b"\xff\x00"])
def test_d19_a_vote_that_cannot_be_read_counts_as_none_and_says_what_is_expected(body: bytes):
    vote = read_vote(body, SUBJECT)
    assert vote.state is GateState.PENDING
    assert '{"vote": "pass"}' in vote.message
    assert SUBJECT in vote.message


def test_the_reason_of_a_vote_is_short_and_printable():
    vote = read_vote(encode_vote(Vote(vote="fail", reason="a\x1b[31m\n" + "x" * 999)), SUBJECT)
    assert vote.message.startswith("a [31m xxx")
    assert len(vote.message) == 200
