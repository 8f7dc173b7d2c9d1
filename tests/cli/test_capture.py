"""`fleetbus capture`: the file, what is hidden in it, and what is refused."""

from __future__ import annotations

import base64
import gzip
import json
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from redis.asyncio import Redis

from fleetbus.errors import CaptureError, ConfigError
from fleetbus.process.access.store import StoreAccess
from fleetbus.snapshot.records import ResourceRecord
from fleetbus_cli.app import app
from fleetbus_cli.capture.capture import CaptureOptions, capture
from fleetbus_cli.capture.file import write_capture
from fleetbus_cli.capture.reading import Capture
from fleetbus_cli.capture.redact import HiddenPath, Redactor
from fleetbus_cli.main import main
from fleetbus_cli.unknown import UnknownName
from fleetbus_proto.events import Event
from fleetbus_proto.resources import Resource
from support.eventually import eventually
from support.hostile.secret_canaries import CANARY, RULES, VISIBLE, hits, planted
from support.objects import config_map
from support.processes.in_process_commands import status_of
from support.rigs.fleet import Rig
from support.stores.snapshot import Snapshot, Source
from support.wire import captures

OpenRig = Callable[..., Awaitable[Rig]]
MAPS, PODS, SECRETS = "v1/configmaps", "v1/pods", "v1/secrets"
_POD = Resource("core", "v1", "pods")
_MAP = Resource("core", "v1", "configmaps")
_SECRET = Resource("core", "v1", "secrets")


def options(out: Path, **changed: Any) -> CaptureOptions:
    fields: dict[str, Any] = {
        "out": out,
        "since": "10m",
        "clusters": [],
        "resources": [],
        "redact": [],
        "redact_values": False,
        "keep_values": False,
        "force": False,
    }
    return CaptureOptions.read(**fields | changed)


def no_report(objects: int, events: int) -> None:
    del objects, events


def content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    source = Source(cluster="eu1", resource="configmaps")
    map_a = config_map("a", metadata={"uid": "uid-a"}, k="1")
    body = json.dumps(map_a).encode()
    return captures.write(
        tmp_path / "small.gz",
        {"hub": {"role": "hub"}, "eu1": {"region": "eu"}},
        [("eu1", MAPS, map_a)],
        [source.added("a", 9, namespace="default", body=body)],
    )


# --- a capture of a fleet -------------------------------------------------------------------------


async def test_a_capture_has_objects_and_events_of_the_chosen_clusters_and_no_secret(
    open_rig: OpenRig, tmp_path: Path
) -> None:
    """S1: planted values show up nowhere in the file, though everything else does."""
    rig = await open_rig("a", "b", resources=(MAPS, PODS, SECRETS, "apps/v1/deployments"))
    objects = list(planted(Random(7), 60))
    rig.clusters["a"].restore(objects)
    rig.clusters["b"].create(MAPS, config_map("elsewhere"))
    rig.start_reconciler()
    for name in ("a", "b"):
        rig.start_watcher(name, secrets=True, transforms=RULES)
    await rig.synced("core/configmaps", "core/pods", "core/secrets")
    rig.clusters["a"].create(MAPS, config_map("late", note=VISIBLE))

    async def is_stored() -> bool:
        return await rig.reader.get("a", "core/configmaps", "default", "late") is not None

    await eventually(is_stored)
    chosen_options = options(tmp_path / "a.gz", clusters=["a"], keep_values=True)
    path, store, nats = chosen_options.out, rig.shared.store, rig.shared.nats
    header = await capture(chosen_options, store=store, nats=nats, report=no_report)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert VISIBLE.encode() in content(path)
    assert hits("capture", content(path)) == []
    opened = Capture.open(path)
    assert (
        [cluster.name for cluster in opened.header.clusters]
        == ["a"]
        == [cluster.name for cluster in header.clusters]
    )
    held = {(obj.type.key, obj.name): obj for obj in opened.objects()}
    kinds = {key for key, _ in held}
    assert kinds == {"core/configmaps", "core/pods", "core/secrets", "apps/deployments"}
    entry = await rig.reader.get("a", "core/configmaps", "default", "late")
    late = held["core/configmaps", "late"]
    assert entry is not None
    assert late.body == entry.body
    events = [event for event in opened.events() if event.name == "late"]
    assert [(event.verb, event.object) for event in events] == [("added", entry.body)]
    assert {event.cluster for event in opened.events()} == {"a"}

    chosen = options(tmp_path / "cm.gz", resources=["cm"], since="0s")
    await capture(chosen, store=rig.shared.store, nats=None, report=no_report)
    only = Capture.open(chosen.out)
    assert {(obj.cluster, obj.type.key) for obj in only.objects()} == {
        ("a", "core/configmaps"),
        ("b", "core/configmaps"),
    }
    assert not list(only.events())

    for wrong, message in (
        ({"clusters": ["c"]}, "cluster 'c' is not in the fleet; known: a, b"),
        ({"resources": ["confgmaps"]}, "'confgmaps' is not watched; did you mean 'configmaps'"),
    ):
        refused = options(tmp_path / "no.gz", **wrong)
        with pytest.raises(UnknownName, match=message):
            await capture(refused, store=store, nats=nats, report=no_report)
    assert sorted(file.name for file in tmp_path.glob("*gz*")) == ["a.gz", "cm.gz"]


async def test_s1_a_secret_that_is_in_the_snapshot_unredacted_is_redacted_in_the_file(
    redis: Redis, valkey_url: str, tmp_path: Path
) -> None:
    snapshot, source = Snapshot(redis), Source(resource="secrets")
    await snapshot.set_up("eu1")
    record = ResourceRecord(group="core", version="v1", plural="secrets", kind="Secret")
    await snapshot.writer.put_resource_state("eu1", record)
    encoded = base64.b64encode(CANARY.encode()).decode()
    secret = {
        "metadata": {"name": "s", "annotations": {"tool.example.com/copy": CANARY}},
        "data": {"password": encoded},
        "stringData": {"plain": CANARY},
    }
    await snapshot.apply(source.added("s", 5, body=json.dumps(secret).encode()))
    taken = options(tmp_path / "s.gz", since="0s")
    await capture(taken, store=StoreAccess(url=valkey_url), nats=None, report=no_report)
    assert hits("capture", content(taken.out)) == []
    (captured_object,) = Capture.open(taken.out).objects()
    assert json.loads(captured_object.body or b"")["data"].keys() == {"password"}


@pytest.mark.parametrize("body", [b"[1]", b'{"metadata":{}},"x":{', b'{"metadata":{},"a":"\xff"}'])
async def test_w16_what_is_no_object_is_captured_without_a_body_and_spoils_no_capture(
    redis: Redis, valkey_url: str, tmp_path: Path, body: bytes
) -> None:
    snapshot, source = Snapshot(redis), Source()
    await snapshot.set_up("eu1")
    record = ResourceRecord(group="core", version="v1", plural="pods", kind="Pod")
    await snapshot.writer.put_resource_state("eu1", record)
    await snapshot.apply(source.added("broken", 5, body=body))
    await snapshot.apply(source.added("whole", 6))
    taken = options(tmp_path / "s.gz", since="0s")
    await capture(taken, store=StoreAccess(url=valkey_url), nats=None, report=no_report)
    broken, intact = Capture.open(taken.out).objects()
    assert (broken.body, broken.degraded) == (None, "unreadable")
    assert (intact.name, intact.degraded) == ("whole", "")
    assert intact.body is not None


# --- what is hidden -------------------------------------------------------------------------------


def redacted(redactor: Redactor, resource: Resource, tree: captures.Object) -> captures.Object:
    return json.loads(redactor.apply(resource, json.dumps(tree).encode()))


def pod(value: str, **annotations: str) -> captures.Object:
    env: list[captures.Object] = [
        {"name": "PASSWORD", "value": value},
        {"name": "REF", "valueFrom": "ref"},
    ]
    return {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "i", "args": [value], "env": env}]},
    }


def test_values_of_environment_variables_are_hidden_and_equal_ones_stay_equal() -> None:
    redactor = Redactor()
    first_pod, same, other = (redacted(redactor, _POD, pod(value)) for value in ("x", "x", "y"))
    (first, reference) = first_pod["spec"]["containers"][0]["env"]
    assert first["value"].startswith("redacted-")
    assert reference == {"name": "REF", "valueFrom": "ref"}
    assert first_pod == same
    assert other["spec"]["containers"][0]["env"][0] != first
    assert redacted(Redactor(), _POD, pod("x"))["spec"] != first_pod["spec"], (
        "another key each time"
    )
    nested = {"spec": {"jobs": [{"inner": pod("x")}]}}
    widget = redacted(redactor, Resource("example.com", "v1", "widgets"), nested)
    assert widget["spec"]["jobs"][0]["inner"]["spec"]["containers"][0]["env"][0] == first


def test_long_annotations_are_hidden_but_ours() -> None:
    template = redacted(
        Redactor(),
        _POD,
        pod("x", **{"big": "b" * 2000, "small": "s", "fleetbus.dev/owner": "o" * 2000}),
    )
    annotations = template["metadata"]["annotations"]
    assert annotations["big"].startswith("redacted-")
    assert (annotations["small"], annotations["fleetbus.dev/owner"]) == ("s", "o" * 2000)


def test_what_has_nothing_to_hide_stays_byte_for_byte() -> None:
    body = b'{ "metadata":{"name":"x"},  "data": {"k":"v"} }'
    assert Redactor().apply(_MAP, body) is body
    redactor = Redactor(env=False)
    shown = json.dumps(pod("x", a="b" * 3000)).encode()
    assert redactor.apply(_POD, shown) is shown


def test_data_and_paths_are_hidden_on_request() -> None:
    paths = [HiddenPath.read("core/pods:spec.containers[*].args"), HiddenPath.read("spec.host")]
    redactor = Redactor(values=True, paths=paths)
    assert redacted(redactor, _POD, pod("x"))["spec"]["containers"][0]["args"][0] != "x"
    tree = {**config_map("m", k="v"), "binaryData": {"b": "eA=="}, "spec": {"host": "h"}}
    found = redacted(redactor, _MAP, tree)
    assert found["data"]["k"].startswith("redacted-")
    assert base64.b64decode(found["binaryData"]["b"]).startswith(b"redacted-")
    assert found["spec"]["host"].startswith("redacted-")
    assert "spec.host" in redactor.describe()
    assert redactor.unmet() == []
    misspelt = Redactor(paths=[HiddenPath.read("core/configmaps:data[kk]")])
    redacted(misspelt, _MAP, tree)
    assert misspelt.unmet() == ["core/configmaps:data[kk]"]


def test_templates_that_may_have_secrets_are_dropped() -> None:
    resource = Resource("fleetbus.dev", "v1alpha1", "multiclusterresources")
    template = {"kind": "Secret", "stringData": {"p": CANARY}}
    resource_tree = redacted(
        Redactor(), resource, {"spec": {"template": template, "placement": {}}}
    )
    assert resource_tree == {"spec": {"placement": {}}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"redact": ["metadata.name"]},
            "--redact: path 'metadata.name' would remove metadata.name",
        ),
        ({"redact": ["a..b"]}, "--redact: path 'a..b' is invalid"),
        ({"redact_values": True, "keep_values": True}, "contradict"),
        ({"since": "soon"}, "--since 'soon' is not a duration"),
        ({"resources": ["a b"]}, "--resource: 'a b' is not a resource name"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, changed: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        options(tmp_path / "x.gz", **changed)


# --- the file -------------------------------------------------------------------------------------


def test_a_file_that_exists_is_replaced_only_by_force(small: Path) -> None:
    before = small.read_bytes()
    with pytest.raises(CaptureError, match="exists already; --force replaces it"):
        options(small)
    with pytest.raises(CaptureError, match="exists already"), write_capture(small):
        pass
    assert small.read_bytes() == before
    with write_capture(small, force=True):
        pass
    assert small.read_bytes() != before


def test_a_file_that_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    with pytest.raises(CaptureError, match="exists already"), write_capture(path):
        path.write_text("of somebody else")
    assert [file.name for file in tmp_path.iterdir()] == ["x.gz"]
    assert path.read_text() == "of somebody else"


def test_a_capture_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), write_capture(tmp_path / "x.gz"):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CaptureError, match="No such file"), write_capture(tmp_path / "no" / "x"):
        pass
    with pytest.raises(CaptureError, match="is a folder"), write_capture(tmp_path):
        pass


def test_a_capture_can_be_read_more_than_once(small: Path) -> None:
    opened = Capture.open(small)
    for _ in range(2):
        assert [obj.name for obj in opened.objects()] == ["a"]
        assert [type(event) for event in opened.events()] == [Event]
    assert opened.header.hub == "hub"
    assert (cluster := opened.header.cluster("eu1")) is not None
    assert cluster.labels == {"region": "eu"}


def _rewritten(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    lines = content(path).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(change(lines))))


Lines = list[bytes]
_FOREIGN: Lines = [b'{"format":"other"}\n']
_BARE: Lines = [b'{"format":"fleetbus-capture","version":1}\n']
_BROKEN: list[tuple[Callable[[Lines], Lines], str]] = [
    (lambda lines: lines[:-1], "is truncated"),
    (lambda lines: [*lines[:-1], lines[-1][:-1]], "is truncated"),
    (lambda lines: [lines[0], *lines[2:]], "is damaged: its end mark does not fit its 0 objects"),
    (lambda lines: [lines[0], lines[1].replace(b"uid-a", b"uid-b"), *lines[2:]], "is damaged"),
    (lambda lines: [*lines, b"{}\n"], "has more lines after its end mark"),
    (lambda lines: _FOREIGN + lines[1:], "is not a capture of fleetbus"),
    (lambda lines: lines[1:], "is not a capture of fleetbus"),
    (lambda lines: lines[:0], "is not a capture of fleetbus"),
    (lambda lines: _BARE + lines[1:], "a line is malformed"),
    (
        lambda lines: [lines[0].replace(b'"version":1', b'"version":2', 1), *lines[1:]],
        "is of format 2, and this fleetbus reads up to 1",
    ),
]


@pytest.mark.parametrize(("change", "message"), _BROKEN)
def test_a_file_that_is_not_whole_or_not_ours_is_refused(
    small: Path, change: Callable[[Lines], Lines], message: str
) -> None:
    _rewritten(small, change)
    with pytest.raises(CaptureError, match=message):
        Capture.open(small)


def test_a_file_that_was_cut_anywhere_is_refused(small: Path) -> None:
    whole = small.read_bytes()
    for size in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        small.write_bytes(whole[:size])
        with pytest.raises(CaptureError, match=r"truncated|not a capture|damaged"):
            Capture.open(small)
    small.unlink()
    with pytest.raises(CaptureError, match="No such file"):
        Capture.open(small)


def test_the_command_says_in_one_line_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small: Path
) -> None:
    monkeypatch.setattr(app, "registered_groups", [])

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fleetbus", "capture", *arguments])
        return status_of(main), capsys.readouterr().err

    address = ("--redis-url", "redis://127.0.0.1:9", "--nats-url", "nats://127.0.0.1:9")
    assert call("-o", str(small), *address) == (
        1,
        f"fleetbus: {small}: exists already; --force replaces it\n",
    )
    status, printed = call("-o", str(tmp_path / "x.gz"), *address)
    assert (status, printed.count("\n"), "nothing was written" in printed) == (1, 1, True)
    assert [file.name for file in tmp_path.iterdir()] == ["small.gz"]
