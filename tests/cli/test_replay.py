"""`fleetbus replay`: recorded events drive a reconciler that touches nothing (R9)."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from fleetbus.archive.lines import read_line, to_line
from fleetbus.errors import ConfigError
from fleetbus.kube.requests import path_of, read_path
from fleetbus.snapshot.records import ClusterRecord
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_cli.app import app
from fleetbus_cli.main import main
from fleetbus_cli.run.recordings import read_recording
from fleetbus_proto.events import Event
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import parse_resource
from support.processes.in_process_commands import status_of
from support.rigs.fleet import Rig
from support.rows import each_row
from support.stores.snapshot import Source
from support.wire import captures

OpenRig = Callable[..., Awaitable[Rig]]
Ended = tuple[int, str, str]
Call = Callable[..., Ended]
MAPS = "v1/configmaps"

COPIER = """
import fleetbus

copier = fleetbus.Controller("copier")
copier.watch("v1/configmaps", clusters=["a"], namespaces=["default"])

@copier.reconcile
async def copy(request, fleet):
    source = await fleet.cluster("a").get("v1/configmaps", request.namespace, request.name)
    target = fleet.cluster("b")
    found = await target.get("v1/configmaps", request.namespace, request.name)
    if source is None:
        if found:
            uid = found["metadata"]["uid"]
            await target.delete("v1/configmaps", request.namespace, request.name, uid=uid)
        return
    metadata = {"name": request.name, "namespace": request.namespace}
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": source["data"]}
    await target.apply("v1/configmaps", wanted)
"""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def call_one(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["fleetbus", *arguments])
        monkeypatch.setattr(app, "registered_groups", [])
        status = status_of(main)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call_one


def config_map(verb: str, name: str, version: int, value: str = "", cluster: str = "a") -> Event:
    tree: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
        },
        "data": {"k": value},
    }
    source = Source(cluster=cluster, resource="configmaps")
    body = json.dumps(tree).encode()
    return source.event(verb, name, version, namespace="default", body=body)


def record(folder: pathlib.Path, *events: Event) -> str:
    path = folder / "events.jsonl"
    path.write_text("".join(to_line(event) + "\n" for event in events))
    return str(path)


def module(folder: pathlib.Path, text: str = COPIER) -> str:
    path = folder / "copier.py"
    path.write_text(text)
    return str(path)


def writes(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line[:1] in ("a", "b")]


def test_an_event_comes_back_from_its_line_byte_for_byte() -> None:
    for event in (
        config_map("added", "x", 10, "ü"),
        Source().deleted("gone", 7, final_state_unknown=True),
        Source().added("big", 8, body=None, degraded="oversized"),
        Source().added("spaced", 9, body=b'{ "metadata" : {"name":"spaced"} }'),
    ):
        assert read_line(to_line(event)) == event


def test_a_line_that_is_no_event_is_reported_with_its_number() -> None:
    lines = [to_line(config_map("added", "x", 10)), "", '{"cluster": "a"']
    with pytest.raises(ConfigError, match=r"it\.jsonl:3: not an event"):
        list(read_recording("it.jsonl", lines))


def test_a_recording_that_is_not_text_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "it.jsonl"
    path.write_bytes(b"\x8d\xff\n")
    with path.open(encoding="utf-8") as lines, pytest.raises(ConfigError, match="not a recording"):
        list(read_recording("it.jsonl", lines))


@each_row(
    ("resource", "namespace", "name"),
    [
        ("v1/pods", "prod", "web"),
        ("apps/v1/deployments", "", ""),
        ("v1/namespaces", "", "prod"),
        ("example.com/v1/widgets", "a b", "x:y"),
    ],
)
def test_a_path_is_read_as_it_was_made(resource: str, namespace: str, name: str) -> None:
    parsed = parse_resource(resource)
    assert read_path(path_of(parsed, namespace, name)) == (parsed, namespace, name, "")
    if name:
        status_path = read_path(path_of(parsed, namespace, name) + "/status")
        assert status_path == (parsed, namespace, name, "status")


def test_r9_a_replay_prints_the_writes_and_goes_on_as_if_they_were_done(
    call: Call, tmp_path: pathlib.Path, valkey_url: str
) -> None:
    events = record(
        tmp_path,
        config_map("listed", "old", 5, "1", cluster="b"),
        config_map("listed", "x", 10, "1"),
        config_map("modified", "x", 11, "1"),  # nothing to do: the copy is there
        config_map("modified", "x", 12, "2"),
        config_map("deleted", "x", 13, "2"),
    )
    status, out, err = call("replay", events, module(tmp_path), "--store", valkey_url)
    assert status == 0, err
    assert writes(out) == [
        f"b {verb} v1/configmaps default/x" for verb in ("apply", "apply", "delete")
    ]
    assert '  +  k: "2"' in out.replace("'", '"')
    assert "5 events, 4 runs; 3 writes, none sent" in err


def test_r9_what_was_deleted_in_the_replay_may_be_created_again(
    call: Call, tmp_path: pathlib.Path, valkey_url: str
) -> None:
    events = record(
        tmp_path,
        config_map("added", "x", 10, "1"),
        config_map("deleted", "x", 11, "1"),
        config_map("added", "x", 12, "1"),
        config_map("modified", "x", 13, "1"),
    )
    arguments = ("replay", events, module(tmp_path), "--cluster", "b", "--store", valkey_url)
    status, out, _ = call(*arguments)
    assert status == 0
    verbs = [line.split()[1] for line in writes(out)]
    assert verbs == ["apply", "delete", "apply"]


def test_a_write_a_line_has_what_it_would_change_with_the_marks_of_the_recording(
    call: Call, tmp_path: pathlib.Path, valkey_url: str
) -> None:
    events = record(tmp_path, config_map("listed", "x", 10, "<redacted>"))
    arguments = ("replay", events, module(tmp_path), "--cluster", "b", "--store", valkey_url)
    status, out, _ = call(*arguments, "-o", "json")
    (line,) = out.splitlines()
    write = json.loads(line)
    assert status == 0
    assert (write["cluster"], write["verb"], write["before"]) == ("b", "apply", None)
    assert write["after"]["data"] == {"k": "<redacted>"}


STUBBORN = """
import fleetbus

stubborn = fleetbus.Controller("stubborn")
stubborn.watch("v1/configmaps")

@stubborn.reconcile
async def refuse(request, fleet):
    if request.name == "x":
        raise ValueError("never")
    await fleet.cluster("a").live.get_json("/healthz")
"""


def test_what_keeps_failing_is_reported_and_the_rest_goes_on(
    call: Call, tmp_path: pathlib.Path, valkey_url: str
) -> None:
    events = record(tmp_path, *(config_map("listed", name, 10) for name in ("x", "y")))
    status, _, err = call("replay", events, module(tmp_path, STUBBORN), "--store", valkey_url)
    assert status == 1
    assert "stubborn fails for cluster://a/default/x: ValueError: never; that was attempt 10" in err
    assert "Unreachable: a replay has no API server" in err
    assert "2 events, 20 runs" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["events.jsonl"], "no module given"),
        (["copier.py"], "give either recordings"),
        (["events.jsonl", "copier.py", "--since", "1h"], "give either recordings"),
        (["events.jsonl", "copier.py", "--resource", "pods"], "--resource:"),
        (["events.jsonl", "copier.py", "-o", "xml"], "--output 'xml' is not one of"),
    ],
)
def test_what_cannot_be_replayed_is_refused(call: Call, arguments: list[str], message: str) -> None:
    status, _, err = call("replay", *arguments)
    assert (status, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.slow
async def test_r9_a_shadow_run_leaves_the_targets_the_store_and_the_queue_as_they_are(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("a", "b", resources=(MAPS,))
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "x"}, "data": {"k": "1"}}, "default")
    rig.start_reconciler()
    for name in ("a", "b"):
        rig.start_watcher(name)
    await rig.synced("core/configmaps")
    queue = RedisQueue(rig.redis, "copier")
    versions = [cluster.resource_version for cluster in rig.clusters.values()]
    await rig.stop_reconciler()  # what it writes by itself would be taken for ours
    for name in ("a", "b"):
        await rig.stop_watcher(name)
    requests = [len(cluster.requests) for cluster in rig.clusters.values()]
    before = await _content(rig)
    arguments = ["replay", "--since=1h", "--cluster=b", module(tmp_path)]
    process = await asyncio.create_subprocess_exec(
        str(pathlib.Path(sys.executable).with_name("fleetbus")),
        *arguments,
        f"--nats-url={rig.shared.nats_url}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, err
    assert writes(out.decode()) == ["b apply v1/configmaps default/x"]
    assert [cluster.resource_version for cluster in rig.clusters.values()] == versions
    assert [len(cluster.requests) for cluster in rig.clusters.values()] == requests
    assert await _content(rig) == before
    assert not (await queue.stats()).depth
    await queue.aclose()


SHARER = """
import fleetbus

sharer = fleetbus.Controller("sharer")
sharer.watch("v1/configmaps", namespaces=["default"])

@sharer.reconcile
async def share(request, fleet):
    source = await fleet.cluster(request.cluster).get("v1/configmaps", "default", request.name)
    if request.name != "x":
        return
    metadata = {"name": "copy", "namespace": "default"}
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": source["data"]}
    for cluster in fleet.clusters("role=member"):
        await fleet.cluster(cluster.name).apply("v1/configmaps", wanted)
"""


@pytest.mark.slow
async def test_a_replay_of_the_stream_knows_the_labels_of_the_fleet(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("a", "b", resources=(MAPS,))
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "x"}, "data": {"k": "1"}}, "default")
    rig.start_reconciler()
    for name in ("a", "b"):
        rig.start_watcher(name)
    await rig.synced("core/configmaps")
    await rig.stop_reconciler()
    writer = SnapshotWriter(rig.redis, SnapshotKeys())
    for name in rig.clusters:
        await writer.put_cluster(name, ClusterRecord(name=name, labels={"role": "member"}))
    process = await asyncio.create_subprocess_exec(
        str(pathlib.Path(sys.executable).with_name("fleetbus")),
        *("replay", "--since=1h", module(tmp_path, SHARER)),
        f"--nats-url={rig.shared.nats_url}",
        env=os.environ | {"FLEETBUS_REDIS_URL": rig.shared.redis_url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert writes(out.decode()) == [f"{c} apply v1/configmaps default/copy" for c in "ab"], err
    assert b"labels" not in err


def test_a_replay_without_labels_says_whose_were_asked_for(
    call: Call, tmp_path: pathlib.Path, valkey_url: str
) -> None:
    events = record(tmp_path, *(config_map("added", "x", 10, cluster=name) for name in "ab"))
    arguments = ("replay", events, module(tmp_path, SHARER), "--store", valkey_url)
    _, out, err = call(*arguments)
    assert writes(out) == []
    assert (
        "asked for the labels of a, b, which are not recorded: give them with --cluster a:KEY=VALUE"
        in err
    )
    _, out, err = call(*arguments, "--cluster", "a:role=member", "--cluster", "b:role=other")
    assert writes(out) == ["a apply v1/configmaps default/copy"]
    assert "labels" not in err


async def _content(rig: Rig) -> dict[bytes, bytes | None]:
    redis = cast("Any", rig.redis)
    return {key: await redis.dump(key) async for key in redis.scan_iter(count=1000)}


def test_what_was_deleted_in_the_recording_is_written_again_once(
    tmp_path: pathlib.Path, call: Call
) -> None:
    recorded = record(
        tmp_path,
        config_map("added", "x", 10, "v", cluster="b"),
        config_map("deleted", "x", 11, cluster="b"),
        config_map("added", "x", 12, "v"),
        config_map("modified", "x", 13, "v"),
    )
    status, printed, err = call("replay", recorded, module(tmp_path))
    assert (status, writes(printed)) == (0, ["b apply v1/configmaps default/x"]), err


LOOKER = """
import fleetbus

looker = fleetbus.Controller("looker")
looker.watch("v1/configmaps", clusters=["a"], namespaces=["default"])

@looker.reconcile
async def look(request, fleet):
    for name in ("a", "b"):
        live = fleet.cluster(name).live
        found = await live.get("v1/configmaps", request.namespace, request.name)
        wanted = found is not None if name == "b" else found is None
        if wanted:
            raise ValueError(f"{name}: {found}")
"""


def test_r6_a_live_read_in_a_replay_answers_none_for_what_is_not_there(
    tmp_path: pathlib.Path, call: Call
) -> None:
    recorded = record(tmp_path, config_map("added", "x", 10, "v"))
    status, _, err = call("replay", recorded, module(tmp_path, LOOKER), "--cluster", "b")
    assert status == 0, err


RELEASER = """
import fleetbus

releaser = fleetbus.Controller("releaser")
releaser.watch("v1/configmaps", clusters=["a"], namespaces=["default"])

@releaser.reconcile
async def release(request, fleet):
    home = fleet.cluster("a")
    if await home.get("v1/configmaps", request.namespace, request.name):
        gone = {"metadata": {"finalizers": []}}
        last = await home.patch("v1/configmaps", request.namespace, request.name, gone)
        assert last["metadata"]["name"] == request.name
        assert not last["metadata"].get("finalizers")
        assert await home.get("v1/configmaps", request.namespace, request.name) is None
"""


def test_r9_whoever_takes_the_last_finalizer_away_in_a_replay_is_answered_with_the_object(
    tmp_path: pathlib.Path, call: Call
) -> None:
    event = config_map("modified", "x", 10, "v")
    assert event.object is not None
    tree = json.loads(event.object)
    tree["metadata"] |= {"finalizers": ["x.io/y"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    event = msgspec.structs.replace(event, object=json.dumps(tree).encode())
    status, printed, err = call("replay", record(tmp_path, event), module(tmp_path, RELEASER))
    assert (status, writes(printed)) == (0, ["a patch v1/configmaps default/x"]), err
    assert "reconcile_failed" not in err


KEEPER = """
import fleetbus

keeper = fleetbus.Controller("keeper")
keeper.watch("v1/configmaps", clusters=["a"], namespaces=["default"])
MINE = "example.com/mine"

@keeper.reconcile
async def keep(request, fleet):
    home = fleet.cluster("a")
    place = ("v1/configmaps", request.namespace, request.name)
    found = await home.get(*place)
    if found is None or fleetbus.has_finalizer(found, MINE) and "status" in found:
        return
    stale = found["metadata"]["resourceVersion"]
    if found["metadata"].get("deletionTimestamp"):
        await home.remove_finalizer("v1/configmaps", found, MINE)
        assert await home.get(*place) is None
        return
    held = await home.add_finalizer("v1/configmaps", found, MINE)
    assert held["metadata"]["finalizers"] == ["x.io/y", MINE]
    assert await home.add_finalizer("v1/configmaps", found, MINE) == held, "nothing is sent"
    await home.patch_status(*place, {"phase": "Kept"}, uid=held["metadata"]["uid"])
    found = await home.get(*place)
    assert (found["status"], found["data"]) == ({"phase": "Kept"}, {"k": "v"})
    try:
        await home.patch_status(*place, {"phase": "Late"}, resource_version=stale)
    except fleetbus.Conflict:
        pass
    else:
        raise AssertionError("a server would refuse it")
"""


def test_r9_a_replay_knows_finalizers_and_the_status(tmp_path: pathlib.Path, call: Call) -> None:
    def held(event: Event, **metadata: Any) -> Event:
        assert event.object is not None
        tree = json.loads(event.object)
        tree["metadata"] |= metadata
        return msgspec.structs.replace(event, object=json.dumps(tree).encode())

    retained = held(config_map("added", "x", 10, "v"), finalizers=["x.io/y"])
    going = {"finalizers": ["example.com/mine"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    gone = held(config_map("modified", "y", 11, "v"), **going)
    recorded = record(tmp_path, retained, gone)
    status, printed, err = call("replay", recorded, module(tmp_path, KEEPER))
    assert status == 0, err
    assert "reconcile_failed" not in err
    assert writes(printed) == [
        "a patch v1/configmaps default/x",
        "a patch v1/configmaps/status default/x",
        "a patch v1/configmaps default/y",
    ]


def test_r9_a_capture_is_replayed_from_its_state_through_its_events(
    call: Call, tmp_path: pathlib.Path, valkey_url: str
) -> None:
    """An object that changed in the window comes with its events; the others are there first."""

    def tree(event: Event) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(event.object or b""))

    old = tree(config_map("listed", "old", 5, "1"))
    copied = tree(config_map("listed", "old", 6, "1", cluster="b"))
    last = tree(config_map("modified", "x", 12, "2"))
    events = [config_map("added", "x", 11, "1"), config_map("modified", "x", 12, "2")]
    events.append(config_map("deleted", "y", 13))
    path = captures.write(
        tmp_path / "fleet.gz",
        {"a": {"region": "eu"}, "b": {}},
        [("a", MAPS, old), ("a", MAPS, last), ("b", MAPS, copied)],
        events,
        hub="a",
    )
    replay = ("replay", "--from", str(path), module(tmp_path), "--store", valkey_url)
    status, out, err = call(*replay)
    assert status == 0, err
    assert writes(out) == [
        "b apply v1/configmaps default/old",
        "b apply v1/configmaps default/x",
        "b apply v1/configmaps default/x",
    ]
    assert "5 events" in err
    assert "labels" not in err

    path.write_bytes(path.read_bytes()[:-9])
    status, _, err = call(*replay)
    assert (status, err.count("\n")) == (1, 1)
    assert "is truncated" in err
    status, _, err = call(*replay, "--since", "1h")
    assert (status, "or a capture with --from FILE" in err) == (2, True)
