"""Every recorded release is read by this one: store, bus, objects, captures, archives and calls.

`python tests/run.py upgrade.record` records one, once per release; docs/releasing.md has the step.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import pytest
from nats.aio.client import Client
from redis.asyncio import Redis

from fleetbus.agents.accounts import render_accounts
from fleetbus.agents.records import read_record
from fleetbus.archive import Hole, Reason, open_archive
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import ensure_all, stream_info
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.reader_groups import read_groups
from fleetbus.clusters.access import read_kubeconfig
from fleetbus.clusters.leaving import LEFT_LABEL
from fleetbus.clusters.membership import AGENT_LABEL, KUBECONFIG_LABELS
from fleetbus.controller.load import load_controllers
from fleetbus.intake.record import Record
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.process.clock import now_ms
from fleetbus.snapshot import SnapshotReader, SnapshotWriter
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.watchers.grant_requests import read_grant_requests
from fleetbus.watchers.message_key import message_key
from fleetbus.watchers.resync import decode_resync
from fleetbus.watchers.spec import read_spec
from fleetbus.workqueue.items import list_items
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_agent.enrolment.seeds import SeedSecret
from fleetbus_cli.capture.reading import Capture
from fleetbus_distributor.hub.entries import read_entries
from fleetbus_distributor.hub.rollout_state import read_state as read_rollout
from fleetbus_distributor.plan import intent
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_proto.admission import admit
from fleetbus_proto.calls import decode_to_agent, decode_to_caller
from fleetbus_proto.distribution import decode_distribution_event
from fleetbus_proto.events import EpochEnd, Event, Heartbeat
from fleetbus_proto.keys import KV_BUCKET, SnapshotKeys
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, STREAM
from fleetbus_proto.versions import version_key
from fleetbus_reconciler.fleet_status.accepted_uids import AcceptedUid
from fleetbus_watcher.incarnation import read_incarnation
from fleetbus_watcher.publish.checkpoint import Checkpoint, Checkpoints
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.stores.snapshot import Source
from upgrade import recorded_controllers
from upgrade.record import BEHIND_AGENT, SEEDS
from upgrade.recorded_controllers import FAILS, HANGS, LATER, WELL
from upgrade.recording import (
    ARCHIVE,
    CAPTURE,
    STATE,
    RecordingError,
    State,
    read_state,
    recordings,
    restore_keys,
    restore_streams,
)

CLUSTERS: Final = ("eu1", "hub", "us1")
MAPS: Final = "core/configmaps"
CLUSTER_OBJECTS: Final = "fleetbus.dev/v1alpha1/clusters"


@pytest.fixture(params=recordings(), ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def state(folder: Path) -> State:
    return read_state(folder / STATE)


def test_there_is_a_recording_and_all_of_them_are_small():
    folders = recordings()
    assert folders
    sizes = [file.stat().st_size for each in folders for file in each.rglob("*") if file.is_file()]
    assert sum(sizes) < 300_000 * len(folders)


# --- the store ------------------------------------------------------------------------------------


@pytest.fixture
async def restored(state: State, redis: Redis) -> Redis:
    await restore_keys(redis, state.keys)
    return redis


async def test_the_snapshot_has_what_the_api_servers_had(state: State, restored: Redis):
    reader = SnapshotReader(restored, SnapshotKeys())
    assert {record.name for record in await reader.clusters()} >= set(CLUSTERS)
    for resource in (MAPS, "apps/deployments", "fleetbus.dev/multiclusterresources"):
        page = await reader.list(ListQuery(clusters=CLUSTERS, resource=resource))
        entries = {(entry.cluster, entry.namespace, entry.name): entry for entry in page.entries}
        assert {place: entry.resource_version for place, entry in entries.items()} == {
            (stored.cluster, metadata["namespace"], metadata["name"]): metadata["resourceVersion"]
            for stored in state.objects
            if stored.resource == resource
            for metadata in [stored.object["metadata"]]
        }
        assert all(msgspec.json.decode(entry.body)["metadata"] for entry in entries.values())
    # Another server has it now, which may lack writes: nothing counts before the stream is read.
    freshness = await reader.freshness(CLUSTERS, MAPS)
    assert {each.reason for each in freshness.values()} == {
        "the store lost its last writes, and the stream is being read again"
    }


async def test_events_are_compared_with_the_rows_that_it_wrote(state: State, restored: Redis):
    (well,) = [m for m in state.of_resource(MAPS, "eu1") if m["metadata"]["name"] == WELL]
    metadata = well["metadata"]
    incarnation = latest(state, "eu1").incarnation.number
    source = Source(cluster="eu1", resource="configmaps", incarnation=incarnation)
    place = {"uid": metadata["uid"], "namespace": "default"}
    later = "9" + "0" * len(metadata["resourceVersion"])
    writer = SnapshotWriter(restored, SnapshotKeys())
    same = source.modified(WELL, metadata["resourceVersion"], **place)
    assert [o.value for o in (await writer.apply([same])).outcomes] == ["same"]
    assert version_key(later) > version_key(metadata["resourceVersion"])
    newer = source.modified(WELL, later, **place)
    assert [o.value for o in (await writer.apply([newer])).outcomes] == ["applied"]
    assert [o.value for o in (await writer.apply([same])).outcomes] == ["stale"]
    # It was deleted while the fleet was recorded: its tombstone still counts.
    lost = source.added("short-lived", "1", namespace="default")
    assert [o.value for o in (await writer.apply([lost])).outcomes] == ["stale"]


def latest(state: State, cluster: str) -> Heartbeat:
    """The last heartbeat of a cluster's watcher."""
    messages = state.of_stream(STREAM)
    sent = [m for m in messages if m.subject.startswith(f"fleetbus.status.{cluster}.")]
    heartbeat = admit(sent[-1].subject, sent[-1].headers, sent[-1].data, now_ms=now_ms())
    assert isinstance(heartbeat, Heartbeat)
    return heartbeat


async def test_what_waited_in_a_queue_still_waits_and_can_be_taken(restored: Redis):
    queue = RedisQueue(restored, "recorded")
    stats = await queue.stats()
    assert (stats.processing, stats.failing) == (1, 1)
    items = await list_items(restored, "recorded", 10)
    assert {item.request.name for item in items.shown} == {LATER, FAILS, HANGS}
    # What failed is due by now, and what was put off for an hour may be.
    names = {lease.request.name for lease in await queue.take(10)}
    assert FAILS in names
    assert names <= {FAILS, LATER}


async def test_a_controller_knows_what_it_has_seen_and_read(state: State, restored: Redis):
    (controller,) = load_controllers([str(Path(recorded_controllers.__file__))])
    record = Record(restored, controller)
    assert await record.resources() == [("eu1", MAPS)]
    seen = [batch async for batch in record.scan("eu1", MAPS)]
    stored = {ref.name: each for batch in seen for ref, each in batch.items()}
    assert stored.keys() == {WELL, LATER, FAILS, HANGS}
    versions = {
        obj["metadata"]["name"]: obj["metadata"]["resourceVersion"]
        for obj in state.of_resource(MAPS, "eu1")
    }
    for name, each in stored.items():
        assert each.last_seen is not None
        assert each.last_seen.version[1] == versions[name]
        assert each.last_seen.is_member
    read = stored[WELL].read
    assert read is not None
    assert read[1] == versions[WELL]
    assert stored[FAILS].read is None


# --- the bus --------------------------------------------------------------------------------------


def test_every_message_is_admitted(state: State):
    kinds = {
        type(admit(m.subject, m.headers, m.data, now_ms=now_ms())) for m in state.of_stream(STREAM)
    }
    assert kinds >= {Event, EpochEnd, Heartbeat}
    distribution = [
        decode_distribution_event(message.data) for message in state.of_stream(DISTRIBUTION_STREAM)
    ]
    assert distribution
    assert None not in distribution


@pytest.fixture
async def bus(state: State, nats: Client, nats_url: str) -> AsyncGenerator[Bus]:
    await restore_streams(nats, state)
    async with connected(nats_url, name="test") as bus:
        yield bus


async def test_the_projector_takes_the_streams_as_they_are(state: State, bus: Bus):
    await ensure_all(bus)
    for name in state.streams:
        info = await stream_info(bus, name)
        assert info is not None
        assert info["state"]["messages"] == len(state.of_stream(name))
    assert next(m.sequence for m in state.of_stream(STREAM)) == 1


async def test_watchers_find_their_incarnation_key_and_checkpoints(state: State, bus: Bus):
    kv = KeyValue(bus)
    for cluster in CLUSTERS:
        incarnation = await read_incarnation(kv, cluster)
        assert incarnation is not None
        assert incarnation == latest(state, cluster).incarnation
        stored = await kv.get(f"{cluster}.message-key")
        assert stored is not None
        assert await message_key(kv, cluster) == stored.value
        entries = await scan_keys(bus, f"{cluster}.checkpoint")
        assert entries
        for key, entry in entries.items():
            recorded = msgspec.json.decode(entry.value, type=Checkpoint)
            checkpoints = Checkpoints(kv, cluster, _is_stored, lambda _, c=recorded: c.transform)
            group, plural, scope = key.split(".")[2:]
            resource = Resource(group.replace("_", "."), recorded.version, plural)
            found = await checkpoints.read(resource, "" if scope == "all" else scope, incarnation)
            assert found == recorded, key


async def _is_stored(*_: object) -> bool:
    return True


async def test_every_key_of_the_bucket_is_read(state: State, bus: Bus):
    kv = KeyValue(bus)
    kinds: set[str] = set()
    for message in state.of_stream(f"KV_{KV_BUCKET}"):
        if message.headers.get("KV-Operation"):
            continue
        key = message.subject.removeprefix(f"$KV.{KV_BUCKET}.")
        owner, *parts = key.split(".")
        kind = owner if owner == "_controllers" else parts[1] if owner == "_hub" else parts[0]
        kinds.add(kind)
        await _check_key(kv, key, kind, message.data)
    # A kind that nobody reads here has to be added.
    assert kinds <= {
        *("_controllers", "checkpoint", "epoch", "grant", "incarnation", "message-key"),
        *("identity", "access", "watch", "resync", "types", "audit"),
    }
    groups = await read_groups(bus)
    complete = {name for group in groups if group.is_complete for name in group.members}
    assert complete >= {"recorded", "distributor", "distributor-targets"}


async def _check_key(kv: KeyValue, key: str, kind: str, value: bytes) -> None:
    if kind == "grant":
        assert (await read_grant_requests(kv, key)).problem == ""
    elif kind == "resync":
        assert decode_resync(value).min_epoch >= 0
    elif kind == "watch":
        assert await read_spec(kv, key.split(".")[1]) is not None
    elif kind == "identity":
        assert msgspec.json.decode(value, type=AcceptedUid).uid
    elif kind == "epoch":
        assert int(value) > 0
    elif kind in ("types", "audit"):
        assert msgspec.json.decode(value)
    elif kind == "access":
        assert value == b"agent" or value.startswith(b"http")


# --- objects --------------------------------------------------------------------------------------


def test_custom_resources_pass_the_definitions_and_lose_no_field(state: State):
    hub = Cluster("hub")
    for definition in crds():
        hub.create(CRDS, definition)
    stored = [each for each in state.objects if each.resource.startswith("fleetbus.dev/")]
    assert {each.resource.partition("/")[2] for each in stored} >= {
        "clusters",
        "multiclusterresources",
    }
    for each in stored:
        resource = f"fleetbus.dev/v1alpha1/{each.resource.partition('/')[2]}"
        namespace = each.object["metadata"].get("namespace")
        metadata = {"name": each.object["metadata"]["name"]}
        made = hub.create(resource, each.object | {"metadata": metadata}, namespace)
        assert made["spec"] == each.object["spec"]
        if "status" in each.object:
            written = hub.update_status(resource, made | {"status": each.object["status"]})
            assert written["status"] == each.object["status"]


def test_the_distributor_reads_what_it_owns_and_where_a_rollout_is(state: State):
    resources = {
        obj["metadata"]["name"]: obj["status"]
        for obj in state.of_resource("fleetbus.dev/multiclusterresources")
    }
    assert resources.keys() == {"plain", "waves"}
    plain = intent.read(resources["plain"])
    assert plain.keys() == {"eu1", "us1"}
    maps = state.of_resource(MAPS)
    uids = {obj["metadata"]["uid"] for obj in maps if obj["metadata"]["name"] == "plain"}
    assert {owned.uid for entries in plain.values() for owned in entries.values()} == uids
    assert intent.read_bases(resources["plain"]).keys() == plain.keys()
    assert read_entries(resources["plain"])["us1"].state == "Applied"
    rollout = read_rollout(resources["waves"])
    assert rollout is not None
    assert [wave.name for wave in rollout.waves] == ["canary", "rest"]


def test_secrets_and_records_of_clusters_are_read(state: State):
    secrets = state.of_resource("core/secrets", "hub")
    labelled = [(obj, obj["metadata"].get("labels", {})) for obj in secrets]
    access = [obj for obj, labels in labelled if KUBECONFIG_LABELS.items() <= labels.items()]
    names = {obj["metadata"]["name"] for obj in access}
    assert len(names) == 3  # of hub, eu1 and eu9; us1 is behind an agent
    for obj in access:
        config, problem = read_kubeconfig(obj["metadata"]["name"], obj)
        assert (config is not None, problem) == (True, "")
    (agent,) = [read_record(obj) for obj, labels in labelled if AGENT_LABEL in labels]
    assert (agent.cluster, bool(agent.key), bool(agent.next_key)) == ("ap1", True, True)
    accounts = render_accounts([agent], datetime.now(UTC))
    assert agent.key in accounts
    assert agent.next_key in accounts
    (left,) = [
        obj["metadata"]["labels"][LEFT_LABEL]
        for obj in state.of_resource(MAPS, "hub")
        if LEFT_LABEL in obj["metadata"].get("labels", {})
    ]
    assert left == "eu8"


async def test_an_agent_finds_its_seeds(state: State, tmp_path: Path):
    namespace, _, name = SEEDS.partition("/")
    secrets = state.of_resource("core/secrets", BEHIND_AGENT)
    (data,) = [obj["data"] for obj in secrets if obj["metadata"]["name"] == name]
    member = Cluster(BEHIND_AGENT)
    member.create("v1/secrets", {"metadata": {"name": name}, "data": data}, namespace)
    async with serve([member]) as servers:
        servers.write_kubeconfig(tmp_path / "kubeconfig")
        config = read_kube_config(tmp_path / "kubeconfig", BEHIND_AGENT)
        async with KubeClient(config) as client:
            seeds = await SeedSecret(client, SEEDS).read()
    assert (seeds.is_registered, seeds.is_confirmed, bool(seeds.next_seed)) == (True, True, True)


# --- files and calls ------------------------------------------------------------------------------


def test_a_capture_is_read(folder: Path):
    capture = Capture.open(folder / CAPTURE)
    assert {cluster.name for cluster in capture.header.clusters} >= set(CLUSTERS)
    assert {obj.name for obj in capture.objects()} >= {WELL, LATER, FAILS, HANGS}
    verbs = {event.verb for event in capture.events() if event.name == "short-lived"}
    assert "deleted" in verbs


async def test_an_archive_is_read(folder: Path):
    holes: list[Hole] = []
    archive = open_archive(f"file://{folder / ARCHIVE}")
    names = {each.event.name async for each in archive.events(on_hole=holes.append)}
    assert names >= {WELL, "short-lived"}
    assert [hole for hole in holes if hole.reason is Reason.DAMAGED] == []


def test_frames_of_calls_through_an_agent_and_commands_are_read(state: State):
    kinds: set[str] = set()
    for frame in state.frames:
        kind = frame.subject.split(".")[1]
        if kind == "api":
            kinds.add(type(decode_to_agent(frame.data)).__name__)
        elif kind == "answers":
            kinds.add(type(decode_to_caller(frame.data)).__name__)
        else:
            assert kind == "control"
    assert kinds >= {"Open", "Head"}


# --- recordings that cannot be read ---------------------------------------------------------------


def _damaged(data: bytes) -> bytes:
    lines = gzip.decompress(data).replace(b"hello again", b"hello  else")
    return gzip.compress(lines)


def _of_a_newer_form(data: bytes) -> bytes:
    lines = gzip.decompress(data).replace(b'"version":1', b'"version":2', 1)
    return gzip.compress(lines)


def test_a_recording_that_cannot_be_read_restores_nothing(folder: Path, tmp_path: Path):
    file, data = tmp_path / STATE, (folder / STATE).read_bytes()
    for content, says in (
        (data[: len(data) // 2], "cannot be read .*: check it out again"),
        (_damaged(data), "does not end with its digest: check it out again"),
        (gzip.compress(b"{}\n"), "is not a recorded state"),
        (b"no gzip", "cannot be read"),
        (_of_a_newer_form(data), "run those of fleetbus .* or later"),
    ):
        file.write_bytes(content)
        with pytest.raises(RecordingError, match=says):
            read_state(file)
