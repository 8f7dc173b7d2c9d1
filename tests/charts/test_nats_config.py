"""The rendered nats.conf on a real nats-server: each credential against each forbidden subject."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus, connected, subscribed
from fleetbus.bus.durables import consumer_info, ensure_consumer
from fleetbus.bus.jetstream import (
    StreamLimits,
    call_jetstream,
    ensure_all,
    ensure_bucket,
    ensure_distribution,
    ensure_prior_states,
    ensure_stream,
    stream_info,
)
from fleetbus.bus.key_value import KeyValue
from fleetbus_devfleet.processes.servers import find_nats_server
from fleetbus_proto.keys import KV_BUCKET, kv_accepted, kv_watch_spec
from fleetbus_proto.subjects import (
    DISTRIBUTION_STREAM,
    PRIOR_STREAM,
    STREAM,
    DistributionVerb,
    distribution_subject,
)
from support.api.rendered_chart import SHOP, VALUES, Object, find, render, secret
from support.servers.nats_refusals import refusals
from support.servers.plain_nats_client import plain_client
from support.servers.rendered_servers import RenderedNats, nats_config, rendered_nats

FLEET = VALUES["everything"]
DOCS = Path(__file__).parents[2] / "docs"
ROOMY = {"size": "64Gi"}
USERS = [
    *("watcher-hub", "watcher-eu1", "pool", "projector", "distributor"),
    *("reconciler-shop", "reconciler-mail", "subscriber-audit", "subscriber-other", "operator"),
    *("subscriber-pager", "voter-ci", "query-api"),
]
GET = "$JS.API.DIRECT.GET"
NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}"
INFO = f"$JS.API.CONSUMER.INFO.{STREAM}"
CREATE = f"$JS.API.CONSUMER.CREATE.{STREAM}"
KV = f"$KV.{KV_BUCKET}"
POD = "fleetbus.events.eu1.core.pods.a.b.added"

PUBLISH: dict[str, set[str]] = {
    # subject → who may publish to it; everybody else is refused
    "fleetbus.events.eu1.core.pods.a.b.added": {"watcher-eu1", "pool", "projector"},
    "fleetbus.epochs.eu1.core.pods": {"watcher-eu1", "pool"},
    "fleetbus.status.eu1.r1": {"watcher-eu1", "pool"},
    "fleetbus.events.mars.core.pods.a.b.added": {"pool", "projector"},
    "fleetbus.control.eu1": {"projector"},
    f"{KV}.eu1.incarnation": {"watcher-eu1", "pool", "projector"},
    f"{KV}._hub.eu1.accepted": {"projector"},
    f"{KV}._hub.mars.watch.spec": {"projector"},
    f"{KV}._controllers.shop.0": {"reconciler-shop", "projector"},
    f"{KV}._controllers.mail.0": {"reconciler-mail", "projector"},
    f"{KV}._controllers.distributor.0": {"distributor", "projector"},
    f"{GET}.KV_{KV_BUCKET}.{KV}.eu1.incarnation": {"watcher-eu1", "pool", "projector"},
    f"{GET}.KV_{KV_BUCKET}.{KV}._hub.eu1.watch.spec": {"watcher-eu1", "pool", "projector"},
    f"{GET}.KV_{KV_BUCKET}": {"pool", "projector"},
    f"{GET}.{STREAM}.fleetbus.status.eu1.r1": {"watcher-eu1", "pool", "projector"},
    f"{GET}.{STREAM}.fleetbus.events.eu1.core.pods.a.b.added": {"projector"},
    f"{GET}.{STREAM}": {"projector", "query-api"},
    f"{GET}.{DISTRIBUTION_STREAM}": {"query-api"},
    f"{GET}.{PRIOR_STREAM}": {"query-api"},
    "fleetbus.prior.eu1.core.pods.a.b": {"projector"},
    "fleetbus.votes.shop.web.1-a.canary.tests": {"voter-ci"},
    "fleetbus.votes.mail.web.1-a.canary.tests": set(),
    "fleetbus.distribution.shop.web.eu1.applied": {"distributor"},
    f"{GET}.{DISTRIBUTION_STREAM}.fleetbus.votes.shop.web.1-a.canary.tests": {"distributor"},
    f"{GET}.{DISTRIBUTION_STREAM}.fleetbus.distribution.shop.web.eu1.applied": set(),
    f"$JS.API.STREAM.CREATE.{DISTRIBUTION_STREAM}": {"projector"},
    f"$JS.API.CONSUMER.CREATE.{DISTRIBUTION_STREAM}.subscriber-pager": {"projector"},
    f"$JS.API.CONSUMER.MSG.NEXT.{DISTRIBUTION_STREAM}.subscriber-pager": {"subscriber-pager"},
    f"$JS.API.CONSUMER.MSG.NEXT.{DISTRIBUTION_STREAM}.subscriber-audit": set(),
    f"$JS.ACK.{DISTRIBUTION_STREAM}.subscriber-pager.1.1.1.1.0": {"subscriber-pager"},
    f"{NEXT}.projector": {"projector"},
    f"{NEXT}.shop-1": {"reconciler-shop"},
    f"{NEXT}.shop-stock-2": {"reconciler-shop"},
    f"{NEXT}.mail-1": {"reconciler-mail"},
    f"{NEXT}.distributor-targets-4": {"distributor"},
    f"{NEXT}.subscriber-audit": {"subscriber-audit"},
    f"{NEXT}.subscriber-pager": set(),
    f"{NEXT}.mine": {"subscriber-other"},
    f"{INFO}.shop-1": {"reconciler-shop", "projector", "operator"},
    f"{INFO}.subscriber-audit": {"projector", "operator"},
    f"{CREATE}.shop-replay": {"reconciler-shop", "projector"},
    f"{CREATE}.shop-1": {"projector"},
    f"{CREATE}.subscriber-audit": {"projector"},
    f"{CREATE}.subscriber-audit.fleetbus.events.eu1.>": {"projector"},
    f"{CREATE}.any.fleetbus.events.>": {"projector"},
    f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.any": set(),
    f"$JS.API.CONSUMER.DELETE.{STREAM}.shop-replay": {
        *("reconciler-shop", "projector", "operator")
    },
    f"$JS.API.CONSUMER.DELETE.{STREAM}.mail-1": {"projector", "operator"},
    f"$JS.API.STREAM.INFO.{STREAM}": {
        *("projector", "reconciler-shop", "reconciler-mail", "distributor", "operator"),
        "query-api",
    },
    f"$JS.API.STREAM.CREATE.{STREAM}": {"projector"},
    "$JS.API.STREAM.CREATE.any": set(),
    f"$JS.API.STREAM.DELETE.{STREAM}": {"operator"},
    f"$JS.API.STREAM.PURGE.{STREAM}": set(),
    f"$JS.API.STREAM.UPDATE.{STREAM}": {"operator"},
    f"$JS.API.STREAM.MSG.GET.{STREAM}": set(),
    f"$JS.API.STREAM.MSG.DELETE.{STREAM}": set(),
    "$JS.API.STREAM.NAMES": {"operator"},
    f"$JS.ACK.{STREAM}.shop-1.1.1.1.1.0": {"reconciler-shop"},
    f"$JS.ACK.hub.hash.{STREAM}.shop-1.1.1.1.1.0": {"reconciler-shop"},
    f"$JS.ACK.{STREAM}.projector.1.1.1.1.0": {"projector"},
    f"$JS.ACK.{STREAM}.subscriber-audit.1.1.1.1.0": {"subscriber-audit"},
    "$SYS.REQ.SERVER.PING": set(),
    "_INBOX.watcher.eu1.x": set(),
    "any": set(),
}
SUBSCRIBE: dict[str, set[str]] = {
    "_INBOX.>": set(),
    "_INBOX.watcher.eu1.x": {"watcher-eu1"},
    "_INBOX.watcher.hub.x": {"watcher-hub"},
    "_INBOX._pool.m1.x": {"pool"},
    "_INBOX.operator.x": {"operator"},
    "_INBOX.projector.x": {"projector"},
    "_INBOX.distributor.x": {"distributor"},
    "_INBOX.reconciler.shop.x": {"reconciler-shop"},
    "_INBOX.reconciler.mail.x": {"reconciler-mail"},
    "_INBOX.subscriber.audit.x": {"subscriber-audit"},
    "_INBOX.voter.ci.x": {"voter-ci"},
    "_INBOX.subscriber.pager.x": {"subscriber-pager"},
    "fleetbus.votes.shop.>": {"distributor"},
    "fleetbus.distribution.shop.>": set(),
    "fleetbus.>": set(),
    "fleetbus.events.eu1.>": set(),
    "fleetbus.control.eu1": {"watcher-eu1", "pool"},
    "fleetbus.control.mars": {"pool"},
    f"{KV}.>": {"projector"},
    f"{KV}._pool.member.m1": {"pool", "projector"},
    f"{KV}._controllers.shop.0": {"projector"},
    f"{KV}.eu1.message-key": {"projector"},
    "$SYS.>": set(),
    ">": set(),
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[RenderedNats]:
    async with rendered_nats(FLEET, tmp_path) as server:
        yield server


async def test_s3_s4_s5_each_credential_may_what_it_needs_and_nothing_else(server: RenderedNats):
    wrong: list[str] = []
    for user in USERS:
        refused = await refusals(server, user, PUBLISH, SUBSCRIBE)
        for verb, table in (("publish", PUBLISH), ("subscription", SUBSCRIBE)):
            for subject, allowed in table.items():
                is_refused = f"{verb} {subject}" in refused
                if is_refused == (user in allowed):
                    wrong.append(f"{user}: {verb} {subject}: refused={is_refused}")
    assert wrong == []


async def test_s4_the_projector_reads_for_the_controllers_in_its_pods_and_for_no_others(
    tmp_path: Path,
):
    mail = {**SHOP, "name": "mail", "controllers": ["mail"]}
    values = {"projector": {"reconciler": "shop"}, "reconcilers": [SHOP, mail]}
    subjects = [
        f"{form}{controller}{end}"
        for controller in ("shop-1", "shop-stock-4", "mail-1")
        for form, end in ((f"{NEXT}.", ""), (f"$JS.ACK.{STREAM}.", ".1.1.1.1.0"))
    ]
    async with rendered_nats(values, tmp_path) as server:
        refused = await refusals(server, "projector", subjects, [])
    others = {f"publish {subject}" for subject in subjects if "mail" in subject}
    assert others
    assert {each for each in refused if each.startswith("publish")} == others


@asynccontextmanager
async def hub_and_watcher(server: RenderedNats) -> AsyncGenerator[tuple[Bus, Bus]]:
    """The projector, with stream and bucket created, and the watcher of eu1."""
    async with (
        connected(server.access("projector"), name="projector") as hub,
        connected(server.access("watcher-eu1"), name="watcher.eu1") as watcher,
    ):
        await ensure_stream(hub)
        await ensure_bucket(hub)
        yield hub, watcher


async def test_s3_a_watcher_publishes_and_keeps_its_keys_with_these_rights(server: RenderedNats):
    async with hub_and_watcher(server) as (hub, watcher):
        kv = KeyValue(watcher)
        first = await kv.put("eu1.incarnation", b"1")
        assert await kv.update("eu1.incarnation", b"2", first)
        assert await kv.update("eu1.incarnation", b"3", first) is None
        entry = await kv.get("eu1.incarnation")
        assert entry is not None
        assert entry.value == b"2"
        assert await kv.get("eu1.nothing") is None
        await KeyValue(hub).put(kv_watch_spec("eu1"), b"spec")
        spec = await kv.get(kv_watch_spec("eu1"))
        assert spec is not None
        ack = await watcher.request(POD, b"event", headers={"Nats-Msg-Id": "1"})
        assert json.loads(ack.data)["seq"] == 1
        again = await watcher.request(POD, b"event", headers={"Nats-Msg-Id": "1"})
        assert json.loads(again.data)["duplicate"] is True
        woken = asyncio.Event()

        async def wake(_message: Msg) -> None:
            woken.set()

        async with subscribed(watcher, "fleetbus.control.eu1", wake):
            await watcher.nc.flush()
            await hub.publish("fleetbus.control.eu1")
            async with asyncio.timeout(5):
                await woken.wait()


async def test_s3_the_answer_to_a_watcher_never_becomes_a_key_of_the_hub(server: RenderedNats):
    # The server does not check the subject of an answer: within one account it would be stored.
    async with hub_and_watcher(server) as (hub, watcher):
        forged = f"{KV}.{kv_accepted('mars')}"
        await KeyValue(watcher).put("eu1.mine", b"forged")
        subject = f"{GET}.KV_{KV_BUCKET}.{KV}.eu1.mine"
        await watcher.publish(subject, reply=forged)
        await watcher.publish(POD, b"event", reply=forged)
        await watcher.nc.flush()
        # Whatever was sent before this is stored before it, too.
        await watcher.request(POD, b"event")
        await KeyValue(watcher).put("eu1.mine", b"last")
        assert await KeyValue(hub).get(kv_accepted("mars")) is None


async def test_s5_a_subscriber_reads_and_acknowledges_its_durable(server: RenderedNats):
    async with hub_and_watcher(server) as (hub, watcher):
        await ensure_consumer(hub, "subscriber-audit", ["fleetbus.events.eu1.>"])
        await watcher.request(POD, b"event")
        login = secret(server.objects, "fb-fleetbus-subscriber-audit-nats")
        async with plain_client(
            server.address, inbox_prefix=login["inboxPrefix"], **server.login("subscriber-audit")
        ) as client:
            pull = await client.jetstream().pull_subscribe_bind(
                consumer=login["durable"], stream=login["stream"]
            )
            (message,) = await pull.fetch(1, timeout=5)
            assert (message.subject, message.data) == (POD, b"event")
            await message.ack_sync()
        info = await consumer_info(hub, "subscriber-audit")
        assert info is not None
        assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 1)


async def test_s5_a_subscriber_of_the_distributor_reads_what_it_tells(server: RenderedNats):
    subject = distribution_subject("shop", "web", "eu1", DistributionVerb.APPLIED)
    async with (
        connected(server.access("projector"), name="projector") as hub,
        connected(server.access("distributor"), name="distributor") as distributor,
    ):
        await ensure_distribution(hub)
        durable, filters = "subscriber-pager", ["fleetbus.distribution.shop.>"]
        await ensure_consumer(hub, durable, filters, stream=DISTRIBUTION_STREAM)
        await distributor.request(subject, b"event")
        await distributor.request(subject.replace("shop", "mail"), b"of others")
        login = secret(server.objects, "fb-fleetbus-subscriber-pager-nats")
        async with plain_client(
            server.address, inbox_prefix=login["inboxPrefix"], **server.login(durable)
        ) as client:
            pull = await client.jetstream().pull_subscribe_bind(
                consumer=login["durable"], stream=login["stream"]
            )
            (message,) = await pull.fetch(2, timeout=2)
            assert (message.subject, message.data) == (subject, b"event")
            await message.ack_sync()


async def test_a_command_in_a_pod_gets_answers_with_the_login_of_that_pod(server: RenderedNats):
    """Its connection has another name than the component, and no other inbox is allowed."""
    for pod, user in (("projector", "projector"), ("distributor", "distributor")):
        (container,) = find(render(FLEET), "Deployment", f"fb-fleetbus-{pod}")["spec"]["template"][
            "spec"
        ]["containers"]
        variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        inbox = variables["FLEETBUS_NATS_INBOX_PREFIX"]
        access = replace(server.access(user), inbox_prefix=inbox)
        async with connected(access, name="fleetbus-doctor") as bus:
            await bus.nc.subscribe(bus.nc.new_inbox())
            assert await stream_info(bus) is None  # an answer: there is no stream yet


async def test_nobody_logs_in_without_or_with_wrong_credentials(server: RenderedNats):
    right = server.login("projector")
    wrong: list[Any] = [
        {"tls": right["tls"]},
        {**right, "password": "x"},
        {**right, "user": "pool"},
    ]
    for login in wrong:
        with pytest.raises(nats.errors.Error):
            async with plain_client(server.address, connect_timeout=2, **login):
                pass


def test_the_configuration_is_durable_and_bounded():
    text = secret(render(FLEET), "fb-fleetbus-nats-config")["nats.conf"]
    assert "sync_interval: always" in text
    assert "max_payload: 8388608\n" in text
    assert "http: 127.0.0.1:8222" in text
    assert "max_file_store: 3623878656\n" in text
    for forbidden in ("leafnodes", "no_auth_user", "websocket", "mqtt", "gateway"):
        assert forbidden not in text


@pytest.mark.parametrize(
    ("limits", "environment"),
    [
        ({"memory": "3Gi"}, "2576980377"),
        ({"memory": "1Gi"}, "858993459"),
        ({"cpu": 2, "memory": None}, None),
    ],
)
def test_what_readers_of_the_stream_load_stays_below_the_memory_limit(
    limits: Object, environment: str | None
):
    """A server that had read 1.2 GB of events held 3.7 GB, and would have been killed."""
    objects = render({"nats": {"embedded": {"resources": {"limits": limits}}}})
    pod = find(objects, "StatefulSet", "fb-fleetbus-nats")["spec"]["template"]["spec"]
    variables = {
        variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]
    }
    assert variables.get("GOMEMLIMIT") == environment


def test_the_disk_holds_all_streams():
    claim = find(render({}), "StatefulSet", "fb-fleetbus-nats")["spec"]["volumeClaimTemplates"][0]
    assert claim["spec"]["resources"]["requests"]["storage"] == "8Gi"


@pytest.mark.parametrize(
    "sizes", [{}, {"streamBytes": 16 * 1024**3, "embedded": {"storage": {"size": "24Gi"}}}]
)
async def test_b12_the_server_has_room_for_all_that_the_projector_creates(
    sizes: Object, tmp_path: Path
):
    values: Object = {**FLEET, "nats": sizes}
    (container,) = find(render(values), "Deployment", "fb-fleetbus-projector")["spec"]["template"][
        "spec"
    ]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    limits = StreamLimits(
        max_bytes=int(variables["FLEETBUS_RECONCILER_STREAM_MAX_BYTES"]),
        bucket_bytes=int(variables["FLEETBUS_RECONCILER_BUCKET_MAX_BYTES"]),
    )
    async with (
        rendered_nats(values, tmp_path) as server,
        connected(server.access("projector"), name="projector") as hub,
    ):
        await ensure_all(hub, limits)


@pytest.mark.parametrize("page", ["alerts.md", "upgrade.md"])
async def test_b12_the_documented_edits_leave_nothing_that_a_projector_refuses(
    page: str, tmp_path: Path
):
    text = (DOCS / "operations" / page).read_text()
    edits = re.findall(r"stream edit (\w+) --max-bytes (\d+)GB", text)
    sizes = {stream: int(size) * 1024**3 for stream, size in edits}
    limits = StreamLimits(max_bytes=sizes[STREAM], bucket_bytes=2 * 1024**2)
    values = {**FLEET, "nats": {"streamBytes": limits.max_bytes, "embedded": {"storage": ROOMY}}}
    async with (
        rendered_nats(values, tmp_path) as server,
        connected(server.access("projector"), name="projector") as hub,
        connected(server.access("operator"), name="operator") as operator,
    ):
        before = StreamLimits(max_bytes=2 * 1024**2, bucket_bytes=1024**2)
        for ensure in (ensure_stream, ensure_prior_states, ensure_distribution):
            await ensure(hub, before)
        for stream in (STREAM, PRIOR_STREAM):
            info = await stream_info(operator, stream)
            assert info is not None
            config = info["config"] | {"max_bytes": sizes[stream]}
            await call_jetstream(operator, f"STREAM.UPDATE.{stream}", config)
        for ensure in (ensure_stream, ensure_prior_states, ensure_distribution):
            await ensure(hub, limits)


def test_s9_three_servers_know_each_other_and_every_configuration_is_accepted(tmp_path: Path):
    values: Object = {**FLEET, "nats": {"embedded": {"replicas": 3}}}
    config = tmp_path / "nats.conf"
    text = nats_config(values, tmp_path)
    config.write_text(text)
    done = subprocess.run(
        [find_nats_server(), "-t", "-c", config], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for number in range(3):
        assert f"@fb-fleetbus-nats-{number}.fb-fleetbus-nats-headless.fleetbus.svc:6222" in text
    objects = render(values)
    assert find(objects, "StatefulSet", "fb-fleetbus-nats")["spec"]["replicas"] == 3
    projector = find(objects, "Deployment", "fb-fleetbus-projector")["spec"]["template"]["spec"]
    assert {"name": "FLEETBUS_RECONCILER_BUS_REPLICAS", "value": "3"} in projector["containers"][0][
        "env"
    ]
