"""A compromised agent against everything of others, on the chart's NATS (rule S3).

Each attack is tried with valid credentials of another cluster, and none may succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from fleetbus.agents.accounts import render_accounts
from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import AgentRecord
from fleetbus.agents.rights import agent_rights
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import StreamLimits, ensure_all
from fleetbus.bus.key_value import KeyValue
from fleetbus.process.clock import rfc3339
from fleetbus_agent.enrolment.seeds import write_seed
from fleetbus_proto.keys import KV_BUCKET, kv_accepted
from fleetbus_proto.subjects import PRIOR_STREAM, STREAM
from support.api.rendered_chart import SEED, VALUES, Object
from support.eventually import eventually
from support.servers.plain_nats_client import plain_client
from support.servers.rendered_servers import RenderedNats, rendered_nats

CHART: Object = {
    **VALUES["everything"],
    "credentials": {"seed": SEED},
    "agents": {"enabled": True},
}
KV = f"$KV.{KV_BUCKET}"
GET = "$JS.API.DIRECT.GET"
LAST = "last.subject.that.nobody.may.publish.to"
EU7, EU8, ONE_TIME = make_seed(), make_seed(), make_seed()

OWN = [
    # What the agent of eu8 may publish to.
    "fleetbus.answers.eu8.distributor.1a.1",
    "fleetbus.registration.eu8",
    "fleetbus.events.eu8.core.pods.a.b.added",
    "fleetbus.epochs.eu8.core.pods",
    "fleetbus.status.eu8.r1",
    f"{KV}.eu8.incarnation",
    f"{GET}.KV_{KV_BUCKET}.{KV}.eu8.incarnation",
    f"{GET}.KV_{KV_BUCKET}.{KV}._hub.eu8.accepted",
    f"{GET}.{STREAM}.fleetbus.status.eu8.r1",
]
FORBIDDEN = [
    *(subject.replace("eu8", "eu7") for subject in OWN),
    *("fleetbus.api.eu7", "fleetbus.api.eu8", "fleetbus.api.eu7.every-agent"),
    *("fleetbus.control.eu7", "fleetbus.control.eu8", "fleetbus.prior.eu8.core.pods.a.b"),
    *("fleetbus.votes.shop.web.1-a.canary.tests", "fleetbus.distribution.shop.web.eu8.applied"),
    *(f"{KV}._hub.eu8.accepted", f"{KV}._controllers.shop.0", f"{KV}._pool.lease.eu8"),
    *(f"{GET}.{STREAM}", f"{GET}.{STREAM}.fleetbus.events.eu8.core.pods.a.b.added"),
    *(f"{GET}.{PRIOR_STREAM}", f"{GET}.KV_{KV_BUCKET}", f"{GET}.KV_{KV_BUCKET}.{KV}.eu7.x"),
    f"$JS.API.CONSUMER.CREATE.{STREAM}.x.fleetbus.events.>",
    f"$JS.API.CONSUMER.CREATE.KV_{KV_BUCKET}.x.{KV}.>",
    f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.projector",
    f"$JS.ACK.{STREAM}.projector.1.1.1.1.0",
    *("$JS.API.INFO", "$JS.API.STREAM.NAMES", f"$JS.API.STREAM.DELETE.{STREAM}"),
    *("$JS.API.STREAM.CREATE.x", f"$JS.API.STREAM.PURGE.{STREAM}"),
    *("$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.hub.CONNZ", "$SYS.REQ.USER.INFO"),
    *("_INBOX.projector.x", "_INBOX.agent.eu7.x", "_INBOX.agent.eu8.x", "_R_.x", LAST),
]
MAY_SUBSCRIBE = [
    *("fleetbus.api.eu8", "fleetbus.api.eu8.>", "fleetbus.api.eu8.5e1f0a9b"),
    *("_INBOX.agent.eu8.x", "_INBOX.watcher.eu8.x", "fleetbus.control.eu8"),
]
MAY_NOT_SUBSCRIBE = [
    *("fleetbus.api.eu7", "fleetbus.api.eu7.>", "fleetbus.api.>", "fleetbus.api.*", "fleetbus.>"),
    *("fleetbus.answers.eu8.>", "fleetbus.answers.eu7.>", "fleetbus.answers.>", ">", "*.>"),
    *("fleetbus.events.eu8.>", "fleetbus.events.eu7.>", "fleetbus.registration.eu8"),
    *("fleetbus.control.eu7", "fleetbus.control.*", f"{KV}.eu8.>", f"{KV}.>", "$JS.>", "$SYS.>"),
    *("_INBOX.>", "_INBOX.agent.eu7.>", "_INBOX.watcher.eu7.>", "_INBOX.projector.>", "_R_.>"),
]


@dataclass
class Attacker:
    """Somebody with the credentials of one cluster's agent."""

    client: Client = field(default_factory=Client)
    refused: set[str] = field(default_factory=set[str])

    async def note(self, error: Exception) -> None:
        self.refused.add(str(error).lower())

    def was_refused(self, verb: str, subject: str) -> bool:
        return any(f'{verb} to "{subject}"'.lower() in text for text in self.refused)


@dataclass
class Battlefield:
    """The servers, and who is connected."""

    server: RenderedNats
    folder: Path
    hub: Bus
    kv: KeyValue
    stack: AsyncExitStack

    async def attacker(self, seed: str) -> Attacker:
        path = self.folder / f"{public_key(seed)}.nkey"
        write_seed(path, seed)
        one = Attacker()
        login = self.server.login("projector")
        connecting = plain_client(
            self.server.address,
            tls=login["tls"],
            nkeys_seed=str(path),
            error_cb=one.note,
            inbox_prefix="_INBOX.agent.eu8",
        )
        one.client = await self.stack.enter_async_context(connecting)
        return one


@asynccontextmanager
async def battlefield(folder: Path) -> AsyncGenerator[Battlefield]:
    later = rfc3339(datetime.now(UTC) + timedelta(hours=1))
    records = [
        AgentRecord(cluster="eu7", key=public_key(EU7)),
        AgentRecord(cluster="eu8", key=public_key(EU8)),
        AgentRecord(cluster="eu9", one_time=public_key(ONE_TIME), expires=later),
    ]
    (folder / "agents.conf").write_text(render_accounts(records, datetime.now(UTC)))
    async with (
        rendered_nats(CHART, folder) as server,
        connected(server.access("projector"), name="projector") as hub,
        AsyncExitStack() as stack,
    ):
        await ensure_all(hub, StreamLimits())
        yield Battlefield(server, folder, hub, KeyValue(hub), stack)


async def test_s3_an_agent_against_every_subject(tmp_path: Path):
    wrong: list[str] = []
    async with battlefield(tmp_path) as field:
        for seed, may, may_get in (
            (EU8, set(OWN), set(MAY_SUBSCRIBE)),
            (ONE_TIME, {"fleetbus.registration.eu9"}, {"_INBOX.registration.eu9.x"}),
        ):
            one = await field.attacker(seed)
            listened = [*MAY_SUBSCRIBE, *MAY_NOT_SUBSCRIBE, *may_get]
            for subject in listened:
                await one.client.subscribe(subject)
            for queue in ("agents", "registrars"):
                await one.client.subscribe("fleetbus.api.eu7", queue=queue)
            spoken = [*OWN, *may, *FORBIDDEN]
            for subject in spoken:
                await one.client.publish(subject, b"")
            await eventually(lambda one=one: one.was_refused("publish", LAST))
            for verb, subjects, allowed in (
                ("publish", spoken, may),
                ("subscription", listened, may_get),
            ):
                wrong += [
                    f"{verb} {subject}: refused={one.was_refused(verb, subject)}"
                    for subject in dict.fromkeys(subjects)
                    if one.was_refused(verb, subject) == (subject in allowed)
                ]
    assert "\n".join(wrong) == ""


def test_the_matrix_has_every_right_of_an_agent():
    rights = agent_rights("eu8")
    for pattern in rights.publish:
        assert any(matches(pattern, subject) for subject in OWN), pattern
    for pattern in rights.subscribe:
        assert any(matches(pattern, subject) for subject in MAY_SUBSCRIBE), pattern


def matches(pattern: str, subject: str) -> bool:
    start = pattern.removesuffix(">")
    return subject.startswith(start) if start != pattern else subject == pattern


SPOOFED = [
    "fleetbus.api.eu7",
    "fleetbus.answers.eu7.distributor.1a.1",
    f"{KV}.{kv_accepted('eu7')}",
    f"{KV}.eu7.incarnation",
    "fleetbus.events.eu7.core.pods.a.b.added",
    "fleetbus.registration.eu7",
    f"$JS.API.STREAM.PURGE.{STREAM}",
    "_INBOX.projector.x",
]


async def test_s3_no_answer_is_delivered_where_an_attacker_names_it(tmp_path: Path):
    """Each request of eu8 names a reply of eu7 or the hub: answers stay in the asker's account."""
    async with battlefield(tmp_path) as field:
        received: list[str] = []

        async def receive(message: object) -> None:
            received.append(str(getattr(message, "subject", "")))

        victim = await field.attacker(EU7)
        for subject in ("fleetbus.api.eu7", "fleetbus.control.eu7"):
            await victim.client.subscribe(subject, cb=receive)
        await victim.client.flush()
        answered = asyncio.Event()

        async def answer(message: object) -> None:
            await field.hub.publish(str(getattr(message, "reply", "")), b"answer")
            answered.set()

        await field.hub.nc.subscribe("fleetbus.registration.*", cb=answer)
        await field.hub.nc.subscribe("fleetbus.answers.*.projector.>", cb=receive)
        before = await field.kv.get(kv_accepted("eu7"))
        attacker = await field.attacker(EU8)
        asked = [
            "fleetbus.registration.eu8",
            "fleetbus.events.eu8.core.pods.a.b.added",
            f"{KV}.eu8.incarnation",
            f"{GET}.KV_{KV_BUCKET}.{KV}.eu8.incarnation",
            f"{GET}.{STREAM}.fleetbus.status.eu8.r1",
        ]
        for reply in SPOOFED:
            for subject in asked:
                await attacker.client.publish(subject, b"x", reply=reply)
        await attacker.client.flush()
        await asyncio.wait_for(answered.wait(), 10)
        # All have been handled once the last one has: requests of a client are served in order.
        reply = await attacker.client.request("fleetbus.registration.eu8", b"x", timeout=5)
        assert reply.data == b"answer"
        await field.hub.nc.flush()
        await victim.client.flush()
        assert received == []
        assert await field.kv.get(kv_accepted("eu7")) == before
        assert await field.kv.get("eu7.incarnation") is None
        assert not field.hub.has_failed


async def test_s3_an_answer_reaches_its_caller_from_its_own_cluster_only(tmp_path: Path):
    async with battlefield(tmp_path) as field:
        received: list[tuple[str, str, bytes]] = []

        async def receive(message: object) -> None:
            one: Any = message
            received.append((one.subject, one.reply, one.data))

        await field.hub.nc.subscribe("fleetbus.answers.*.projector.>", cb=receive)
        await field.hub.nc.flush()
        attacker = await field.attacker(EU8)
        for subject in (
            "fleetbus.answers.eu7.projector.1a.1",
            "fleetbus.answers.eu8.projector.1a.1",
        ):
            await attacker.client.publish(subject, b"spoofed", reply="fleetbus.api.eu7")
        await eventually(lambda: received)
        await attacker.client.flush()
        ((subject, reply, _),) = received
        assert subject == "fleetbus.answers.eu8.projector.1a.1"
        # The server has replaced the reply: whoever answers it reaches the attacker's account only.
        assert reply.startswith("_R_.")


async def test_s4_a_component_gets_no_answers_to_another(tmp_path: Path):
    async with battlefield(tmp_path) as field:
        agent = await field.attacker(EU8)
        async with connected(
            field.server.access("reconciler-shop"), name="reconciler.shop"
        ) as shop:
            await shop.nc.subscribe("fleetbus.answers.*.reconciler-shop.>")
            await shop.nc.flush()
            assert not shop.has_failed
            others = ("distributor.>", "projector.>", "reconciler-mail.>", "*.>", ">")
            spied = [await shop.nc.subscribe(f"fleetbus.answers.*.{other}") for other in others]
            await agent.client.publish("fleetbus.answers.eu8.distributor.1a.1", b"secret")
            await eventually(lambda: shop.has_failed)
            assert all(not subscription.pending_msgs for subscription in spied)


async def test_s3_one_cluster_cannot_fill_the_server_with_connections(tmp_path: Path):
    async with battlefield(tmp_path) as field:
        for _ in range(32):
            await field.attacker(EU8)
        with pytest.raises(Exception, match=r"(?i)maximum.*connections|nats"):
            await field.attacker(EU8)
        await field.attacker(EU7)  # others notice nothing
