"""`fleetbus diff`, `timeline`, `restore`, and `get --as-of` and `--deleted` (rule A9)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus.errors import ConfigError
from fleetbus.kube.client import KubeClient
from fleetbus.process.clock import rfc3339
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.history import restore
from fleetbus_cli.history.answer_parts import note_window
from fleetbus_cli.history.deleted import Deleted, read_deleted
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.unknown import UnknownName
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_proto.events import Incarnation
from support.processes.in_process_commands import fleetbus
from support.rigs.query_api import Ended
from support.stores.recorded_past import pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from support.rigs.past_api import PastApi

    Run = Callable[..., Awaitable[Ended]]

EU1 = Source()
ANY = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
UIDS: dict[str, str] = {}
"""UID of the namespace kube-system, by cluster."""
TYPES = ("core/configmaps", "core/namespaces", "core/pods", "core/secrets", "apps/deployments")


def call(argv: tuple[str, ...]) -> int:
    return fleetbus(*argv)


@pytest.fixture
def run(
    past_api: PastApi,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    monkeypatch.setenv("FLEETBUS_API_URL", past_api.url)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def run_command(*argv: str) -> Ended:
        capsys.readouterr()
        status = await asyncio.to_thread(call, argv)
        return Ended.read(status, capsys)

    return run_command


@pytest.fixture
async def eu1(past_api: PastApi, tmp_path: Path) -> AsyncGenerator[Cluster]:
    """The API server of eu1, where the caller may do anything; us1 has none."""
    cluster = Cluster("eu1")
    for name in ("eu1", "us1"):
        await past_api.add_cluster(name, *TYPES)
    async with serve([cluster]) as servers:
        servers.write_kubeconfig(tmp_path / "kubeconfig")
        kube_system = cluster.get("v1/namespaces", None, "kube-system")
        assert kube_system is not None
        UIDS["eu1"] = kube_system["metadata"]["uid"]
        yield cluster


def body(name: str, version: int, *, namespace: str = "prod", **parts: Any) -> bytes:
    metadata: dict[str, Any] = {"name": name, "resourceVersion": str(version), "uid": f"uid-{name}"}
    metadata |= {"namespace": namespace} if namespace else {}
    metadata |= {"creationTimestamp": "2020-01-01T00:00:00Z", **parts.pop("metadata", {})}
    return msgspec.json.encode({"metadata": metadata, **parts})


async def deleted(
    api: PastApi, resource: str, name: str, *, cluster: str = "eu1", **parts: Any
) -> None:
    """Record that an object was deleted that had existed."""
    uid = parts.pop("cluster_uid", UIDS.get(cluster, "other"))
    group, _, plural = resource.partition("/")
    source = Source(cluster=cluster, group=group, resource=plural)
    namespace = parts.get("namespace", "prod")
    content = body(name, 10, **parts)
    for event in (
        source.added(name, 10, body=content, namespace=namespace),
        source.deleted(name, 11, body=content, namespace=namespace),
    ):
        origin = Incarnation(event.incarnation.number, uid)
        await api.past.record(msgspec.structs.replace(event, incarnation=origin))


@pytest.mark.usefixtures("eu1")
async def test_a9_get_as_of_a_time_and_get_deleted(past_api: PastApi, run: Run):
    at = await past_api.past.record(EU1.added("web", 10, body=pod("web", 10)))
    await past_api.past.record(EU1.deleted("web", 11, body=pod("web", 10)))
    assert (await run("get", "pods", "-o", "name")).out == ""
    then = await run("get", "pods", "--as-of", rfc3339(at))
    assert [row[:3] for row in then.rows[1:]] == [["eu1", "prod", "web"]]
    tree = json.loads((await run("get", "pods", "--as-of", rfc3339(at), "-o", "json")).out)
    assert [item["object"]["metadata"]["name"] for item in tree["items"]] == ["web"]
    gone = await run("get", "pods", "--deleted", "--since", "5m")
    assert gone.rows[0][:3] == ["CLUSTER", "NAMESPACE", "NAME"]
    assert [row[:3] for row in gone.rows[1:]] == [["eu1", "prod", "web"]]
    assert (await run("get", "pods", "--deleted", "-o", "name")).out == "pods/web\n"
    assert "no history before" not in (await run("get", "pods", "--deleted", "--since", "0s")).err
    long = await run("get", "pods,cm", "--deleted", "--since", "2d")
    assert "note: there is no history before" in long.err
    assert ["eu1", "prod", "pod/web"] in [row[:3] for row in long.rows], long.out
    with pytest.raises(UnknownName, match="did you mean 'eu1'"):
        await run("get", "pods", "--deleted", "--cluster", "eu")
    early = await run("get", "pods", "--as-of", "1d")
    assert early.status == 1
    assert "the stream was created at" in early.err
    for words in (("--deleted", "-w"), ("--as-of", "1m", "-w"), ("--since", "1h")):
        with pytest.raises(ConfigError):
            await run("get", "pods", *words)


@pytest.mark.usefixtures("eu1")
async def test_a9_diff_says_in_how_many_clusters_what_changed(past_api: PastApi, run: Run):
    sources = [
        Source(cluster=cluster, group="apps", resource="deployments") for cluster in ("eu1", "us1")
    ]
    start = await past_api.past.record(
        *(source.added("web", 10, body=body("web", 10, spec={"image": "a"})) for source in sources),
        *(source.added("api", 11, body=body("api", 11, spec={"image": "a"})) for source in sources),
    )
    await past_api.past.record(
        *(
            source.modified("web", 12, body=body("web", 12, spec={"image": "b"}))
            for source in sources
        ),
        sources[0].modified("api", 13, body=body("api", 13, spec={"image": "c\n"})),
    )
    ended = await run("diff", "deploy", "--since", rfc3339(start))
    assert ended.out.splitlines() == [
        "Deployment prod/web modified in 2 clusters: eu1, us1",
        "    spec.image: a → b",
        "Deployment prod/api modified in 1 of 2 clusters: eu1",
        '    spec.image: a → "c\\n"',
        "    not in us1",
    ]
    nothing = await run("diff", "--since", "0s")
    assert "Nothing changed since" in nothing.err
    full = await run("diff", "apps/v1/deployments", "--since", rfc3339(start))
    assert full.out == ended.out
    groups = json.loads((await run("diff", "--since", rfc3339(start), "-o", "json")).out)["groups"]
    assert len(groups) == 2


@pytest.mark.usefixtures("eu1")
async def test_a9_diff_of_a_time_before_the_window_shows_what_changed_since_it_begins(
    past_api: PastApi, run: Run
):
    await past_api.past.record(EU1.added("web", 10, body=pod("web", 10)))
    found = await run("diff", "--since", "1d")
    assert found.status == 0
    assert found.out == "Pod prod/web added in eu1\n"
    assert "the stream was created at" in found.err
    assert "this is what changed since then" in found.err
    ended = await run("diff", "--since", "1d", "--until", "0s")
    assert (ended.status, ended.out) == (0, found.out)
    assert "this is what changed since then" in ended.err
    late = await run("diff", "--since", "2d", "--until", "1d")
    assert (late.status, late.out) == (1, "")
    assert "the stream was created at" in late.err


@pytest.mark.usefixtures("eu1")
async def test_diff_refuses_unknown_types_and_clusters(run: Run):
    typo = await run("diff", "deploymnets")
    assert (typo.status, typo.out) == (1, "")
    assert "did you mean 'deployments'?" in typo.err
    with pytest.raises(UnknownName, match="did you mean 'eu1'"):
        await run("diff", "--cluster", "eu", "--since", "0s")
    with pytest.raises(ConfigError, match="a/b/c/d"):
        await run("diff", "a/b/c/d")


@pytest.mark.slow
async def test_a9_what_a_list_has_shown_first_is_unknown_before(past_api: PastApi, run: Run):
    """A list as of a time before it was empty without a warning."""
    await past_api.add_cluster("eu1", "core/configmaps")
    source = Source(cluster="eu1", resource="configmaps")
    start = await past_api.past.record(source.added("first", 1, body=body("first", 1)))
    listed = [
        source.listed(f"cm-{number}", 10 + number, body=body(f"cm-{number}", 10))
        for number in range(120)
    ]
    await past_api.past.record(*listed)
    get = ("get", "cm", "--as-of")
    for words, output in (
        (("diff", "cm", "--since"), ()),
        (get, ()),
        *((get, ("-o", form)) for form in ("name", "yaml", "custom-columns=N:.metadata.name")),
    ):
        ended = await run(*words, rfc3339(start), *output)
        warnings = [line for line in ended.err.splitlines() if "unknown at that time" in line]
        assert len(warnings) == 1, (words, output)
        assert "100 objects or more, such as eu1 core/configmaps prod/cm-" in warnings[0]
        known_from = warnings[0].rpartition(" ")[2]
        again = await run(*words, known_from, *output)
        assert "unknown at that time" not in again.err, (words, output)


async def test_a9_a_list_of_the_past_says_to_a_program_what_is_unknown(past_api: PastApi, run: Run):
    """It was said on stderr alone, where a program sees an empty list."""
    for resource in ("configmaps", "secrets"):
        await past_api.add_cluster("eu1", f"core/{resource}")
    start = await past_api.past.record(EU1.added("first", 1, body=pod("first", 1)))
    for resource in ("configmaps", "secrets"):
        source = Source(cluster="eu1", resource=resource)
        await past_api.past.record(source.listed("web", 10, body=body("web", 10)))
    answer = json.loads(
        (await run("get", "cm,secrets", "--as-of", rfc3339(start), "-o", "json")).out
    )
    assert answer["items"] == []
    assert answer["asOf"] == rfc3339(start)
    resources = [(entry["resource"], entry["name"]) for entry in answer["undetermined"]]
    assert resources == [("core/configmaps", "web"), ("core/secrets", "web")]
    assert all(
        entry["reason"] and entry["knownFrom"] > answer["asOf"] for entry in answer["undetermined"]
    )
    again = await run("get", "cm", "--as-of", answer["undetermined"][1]["knownFrom"], "-o", "json")
    assert json.loads(again.out)["undetermined"] == []
    now = json.loads((await run("get", "cm", "-o", "json")).out)
    assert not {"asOf", "undetermined"} & now.keys()


@pytest.mark.usefixtures("eu1")
async def test_a9_a_timeline_is_readable(past_api: PastApi, run: Run):
    await past_api.past.record(
        EU1.added("web", 10, body=pod("web", 10, "a")),
        EU1.modified("web", 11, body=pod("web", 11, "b")),
    )
    ended = await run("timeline", "eu1", "pods", "prod/web")
    first, second, change = ended.out.splitlines()
    assert "added, version 10, on the bus" in first
    assert "modified, version 11" in second
    assert change.strip() == "spec.containers[0].image: a → b"
    ready = {**json.loads(pod("web", 12, "b")), "status": {"phase": "Running"}}
    await past_api.past.record(EU1.modified("web", 12, body=msgspec.json.encode(ready)))
    assert "status" in (await run("timeline", "eu1", "pods", "prod/web")).out
    short = await run("timeline", "eu1", "pods", "prod/web", "--no-status")
    assert short.out == ended.out
    assert "only the status changed: 1." in short.err
    missing = await run("timeline", "eu1", "pods", "prod/none")
    assert (missing.status, "no such object" in missing.err) == (1, True)
    bare = await run("timeline", "eu1", "pods", "web")
    assert "an object in a namespace is named NAMESPACE/NAME" in bare.err
    with pytest.raises(UnknownName, match="did you mean 'eu1'"):
        await run("timeline", "eu", "pods", "prod/web")
    with pytest.raises(ConfigError, match="neither NAMESPACE/NAME"):
        await run("timeline", "eu1", "pods", "a/b/c")


async def test_a_change_brings_nothing_that_a_terminal_obeys(past_api: PastApi, run: Run):
    await past_api.add_cluster("eu1", "core/pods")
    times = [
        await past_api.past.record(EU1.modified("web", version, body=msgspec.json.encode(tree)))
        for version in (10, 11)
        for tree in [{"metadata": {}, "spec": {"\x1b[2J": "\x1b]0;owned\x07" * version}}]
    ]
    for words in (("diff", "--since", rfc3339(times[0])), ("timeline", "eu1", "pods", "prod/web")):
        ended = await run(*words)
        assert "?[2J" in ended.out, words
        assert all(line.isprintable() for line in ended.out.splitlines()), ended.out


async def test_a9_restore_is_a_dry_run_and_then_puts_back(
    past_api: PastApi, run: Run, eu1: Cluster, tmp_path: Path
):
    await deleted(past_api, "core/namespaces", "prod", namespace="")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "base", "uid": "uid-base"}
    await deleted(past_api, "core/configmaps", "leaf", metadata={"ownerReferences": [owner]})
    await deleted(
        past_api,
        "core/configmaps",
        "base",
        data={"a": "b"},
        metadata={"finalizers": ["example.com/a", "foregroundDeletion"]},
    )
    replica_set = {"kind": "ReplicaSet", "name": "rs", "uid": "x", "controller": True}
    await deleted(past_api, "core/pods", "web-1", metadata={"ownerReferences": [replica_set]})
    await deleted(past_api, "core/secrets", "s")
    lost = {**owner, "name": "lost", "uid": "u-lost"}
    await deleted(past_api, "core/configmaps", "orphan", metadata={"ownerReferences": [lost]})
    await deleted(past_api, "core/configmaps", "far", cluster="us1")
    flags = ("--since", "5m", "--kubeconfig", str(tmp_path / "kubeconfig"))
    dry = await run("restore", *flags)
    assert dry.status == 1, "us1 has no context"
    assert "Nothing was written" in dry.err
    assert eu1.get("v1/namespaces", None, "prod") is None
    answer = await run("restore", *flags, "--apply", "-o", "json")
    results = {
        item["name"]: (item["result"], item["reason"]) for item in json.loads(answer.out)["items"]
    }
    assert results["prod"] == results["base"] == results["leaf"] == ("restored", "")
    assert "its controller recreates it: ReplicaSet rs" in results["web-1"][1]
    assert "never published" in results["s"][1]
    assert "its owner is gone: ConfigMap lost" in results["orphan"][1]
    assert results["far"][0] == "failed"
    assert "has no context 'us1'" in results["far"][1]
    base = eu1.get("v1/configmaps", "prod", "base")
    leaf = eu1.get("v1/configmaps", "prod", "leaf")
    assert base is not None
    assert leaf is not None
    assert base["data"] == {"a": "b"}
    assert base["metadata"]["uid"] != "uid-base"
    assert base["metadata"]["finalizers"] == ["example.com/a"]
    assert leaf["metadata"]["ownerReferences"][0]["uid"] == base["metadata"]["uid"]
    again = await run("restore", "cm", "--apply", *flags, "--cluster", "eu1", "-n", "prod")
    assert "it exists again" in again.out


async def test_a9_restore_of_a_namespace_begins_with_the_namespace_itself(
    past_api: PastApi, run: Run, eu1: Cluster, tmp_path: Path
):
    await deleted(past_api, "core/namespaces", "prod", namespace="")
    await deleted(past_api, "core/namespaces", "other", namespace="")
    await deleted(past_api, "core/configmaps", "base", data={"a": "b"})
    flags = ("--since", "5m", "--kubeconfig", str(tmp_path / "kubeconfig"), "--apply")
    ended = await run("restore", "-n", "prod", *flags)
    assert ended.status == 0, ended.out
    assert eu1.get("v1/configmaps", "prod", "base") is not None
    assert eu1.get("v1/namespaces", None, "other") is None


async def test_a9_restore_refuses_another_cluster_and_reports_what_is_refused(
    past_api: PastApi,
    run: Run,
    eu1: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    flags = ("--since", "5m", "--kubeconfig", str(tmp_path / "kubeconfig"), "--apply")
    await deleted(past_api, "core/configmaps", "lost")
    refused = await run("restore", "cm", *flags)
    assert refused.status == 1
    assert 'namespaces "prod" not found' in refused.out
    assert "restore namespaces/prod with it" in refused.out
    await deleted(past_api, "core/configmaps", "theirs", cluster_uid="another")
    wrong = await run("restore", "cm", *flags)
    assert wrong.status == 1
    assert "a cluster other than 'eu1' answers there" in wrong.out
    assert eu1.get("v1/configmaps", "prod", "theirs") is None
    nothing = await run("restore", "deploy", *flags)
    assert nothing.status == 0
    assert "Nothing that matches was deleted in the last 5m and is still missing" in nothing.err
    early = await run("restore", "deploy", *flags, "--since", "2d")
    assert "there is no history before" in early.err
    with pytest.raises(UnknownName, match="did you mean 'eu1'"):
        await run("restore", "cm", *flags, "--cluster", "eu")
    with pytest.raises(ConfigError, match="is not like CLUSTER=CONTEXT"):
        await run("restore", "cm", *flags, "--context", "eu1")
    assert capsys.readouterr() == ("", "")  # nothing of an interruption


def test_a9_gaps_of_many_clusters_are_one_line(capsys: pytest.CaptureFixture[str]):
    gaps = [
        {"cluster": f"c{n}", "to": f"2026-01-02T15:04:0{n}.5Z", "reason": "x"} for n in range(7)
    ]
    hole = {"cluster": None, "to": "2026-01-01T00:00:00Z", "reason": "missing"}
    note_window({"gaps": [hole, *gaps]})
    assert capsys.readouterr().err.splitlines() == [
        "note: up to 2026-01-01T00:00:00Z: missing",
        "note: c0, c1, c2, c3, c4 and 2 more, up to 2026-01-02T15:04:06Z: x",
    ]


async def test_w13_restore_writes_only_to_the_cluster_that_lost_the_object(
    past_api: PastApi, run: Run, eu1: Cluster, tmp_path: Path
):
    """The context of us1 leads to eu1, as in a kubeconfig that was copied."""
    eu1.create("v1/namespaces", {"metadata": {"name": "prod"}})
    await deleted(past_api, "core/configmaps", "theirs", cluster="us1")
    flags = ("--since", "5m", "--kubeconfig", str(tmp_path / "kubeconfig"), "--apply")
    wrong = await run("restore", "cm", *flags, "--context", "us1=eu1")
    assert wrong.status == 1
    assert "a cluster other than 'us1' answers there" in wrong.out
    assert eu1.get("v1/configmaps", "prod", "theirs") is None


async def test_s1_restore_leaves_out_what_was_not_published_whole(
    past_api: PastApi, run: Run, eu1: Cluster, tmp_path: Path
):
    eu1.create("v1/namespaces", {"metadata": {"name": "prod"}})
    await deleted(past_api, "core/configmaps", "cut", data={"a": ["b", {"c": "<redacted>"}]})
    await deleted(past_api, "core/configmaps", "shown", metadata={"name": "written"})
    flags = ("--since", "5m", "--kubeconfig", str(tmp_path / "kubeconfig"), "--apply")
    output = (await run("restore", "cm", *flags)).out
    assert "some of its values were redacted" in output
    assert "its last state is that of another object" in output
    assert eu1.get("v1/configmaps", "prod", "cut") is None
    assert eu1.get("v1/configmaps", "prod", "written") is None


async def test_a9_restore_puts_back_objects_of_a_definition_that_was_deleted(
    past_api: PastApi, run: Run, eu1: Cluster, tmp_path: Path
):
    definitions = "apiextensions.k8s.io/customresourcedefinitions"
    for name in ("eu1", "us1"):
        await past_api.add_cluster(name, *TYPES, definitions, "example.com/widgets")
    eu1.create("v1/namespaces", {"metadata": {"name": "prod"}})
    spec = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": ANY}],
    }
    await deleted(past_api, "example.com/widgets", "w", apiVersion="example.com/v1", kind="Widget")
    await deleted(past_api, definitions, "widgets.example.com", namespace="", spec=spec)
    flags = ("--since", "5m", "--kubeconfig", str(tmp_path / "kubeconfig"))
    dry = (await run("restore", *flags)).out
    assert "would be restored: after its definition" in dry
    assert (await run("restore", *flags, "--apply")).status == 0
    assert eu1.get("example.com/v1/widgets", "prod", "w") is not None


async def test_a9_restore_writes_nothing_if_the_deletions_of_one_type_cannot_be_read(
    past_api: PastApi, run: Run, eu1: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The missing ones may be the namespace, or the owner, of the others."""
    eu1.create("v1/namespaces", {"metadata": {"name": "prod"}})
    await deleted(past_api, "core/configmaps", "base", data={"a": "b"})

    def read(api: ApiClient, query: ObjectQuery, since: str) -> Deleted:
        if query.resource == "deployments.apps":
            raise ApiFailed("the stream cannot be read", 503)
        return read_deleted(api, query, since)

    monkeypatch.setattr(restore, "read_deleted", read)
    flags = ("--since", "5m", "--kubeconfig", str(tmp_path / "kubeconfig"), "--apply")
    for words in ((), ("cm,deployments.apps",)):
        ended = await run("restore", *words, *flags)
        assert (ended.status, ended.out) == (1, "")
        assert (
            "nothing was restored: it is unknown which deployments.apps were deleted: the stream"
            " cannot be read"
        ) in ended.err
    assert eu1.get("v1/configmaps", "prod", "base") is None


async def test_an_interrupted_restore_reports_what_it_has_done(
    past_api: PastApi,
    eu1: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("FLEETBUS_API_URL", past_api.url)
    eu1.create("v1/namespaces", {"metadata": {"name": "prod"}})
    for name in ("a", "b", "c"):
        await deleted(past_api, "core/configmaps", name)
    create = KubeClient.create

    async def interrupted(client: KubeClient, resource: str, tree: Any, **more: Any) -> Any:
        if tree["metadata"]["name"] == "b":
            raise KeyboardInterrupt
        return await create(client, resource, tree, **more)

    monkeypatch.setattr(KubeClient, "create", interrupted)
    argv = ("restore", "cm", "--since", "5m", "--apply", "--kubeconfig", f"{tmp_path}/kubeconfig")

    await asyncio.to_thread(call, argv)  # click turns the interruption into a status
    ended = Ended.read(130, capsys)
    assert [(row[3], row[-1]) for row in ended.rows[1:]] == [("a", "restored")]
    assert "interrupted: the other 2 objects were not reached, or are not known to be back" in (
        ended.err
    )


async def test_a_hostile_last_state_stops_no_other_restore(
    past_api: PastApi, run: Run, eu1: Cluster, tmp_path: Path
):
    eu1.create("v1/namespaces", {"metadata": {"name": "prod"}})
    deep: Any = {}
    for _ in range(600):
        deep = {"a": deep}
    await deleted(past_api, "core/configmaps", "a", metadata={"finalizers": 5})
    await deleted(past_api, "core/configmaps", "b", data=deep)
    await deleted(past_api, "core/configmaps", "c", metadata={"labels": [], "ownerReferences": [5]})
    await deleted(past_api, "core/configmaps", "last")
    flags = ("--since", "5m", "--kubeconfig", str(tmp_path / "kubeconfig"), "--apply")
    ended = await run("restore", "cm", *flags, "-o", "json")
    results = {item["name"]: item["result"] for item in json.loads(ended.out)["items"]}
    assert results["b"] == "failed"
    assert results["a"] == results["last"] == "restored"
