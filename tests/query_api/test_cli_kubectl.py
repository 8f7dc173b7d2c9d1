"""The plugin `kubectl multicluster` (T19)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fleetbus_cli.kubectl import main
from support.rigs.query_api import Ended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from support.rigs.query_api import QueryApi

    Run = Callable[..., Awaitable[Ended]]

PODS, CONFIGMAPS, DEPLOYMENTS = "core/pods", "core/configmaps", "apps/deployments"
POD_HEAD = "CLUSTER   NAME   NAMESPACE   NODE   POD IP   STATUS   CONTAINER   IMAGE"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """One name in two clusters, and one uid in two clusters."""
    await api.add_cluster(
        "c1", hub=True, server_version="v1.33.1", platform="linux/arm64", host="https://c1"
    )
    await api.add_cluster("c2", server_version="v1.32.0", host="https://c2")
    pod: dict[str, Any] = {
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "web", "image": "nginx:1"}, {"name": "x", "image": "y"}],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    await api.add("c1", PODS, "web", created="2026-01-01T00:00:01Z", **pod)
    await api.add("c2", PODS, "web", created="2026-01-01T00:00:03Z", uid="same", **pod)
    await api.add("c1", PODS, "peer", created="2026-01-01T00:00:02Z", uid="same", **pod)
    await api.add("c1", PODS, "bare", namespace="test", created="2026-01-01T00:00:00Z")
    status = {"replicas": 3, "availableReplicas": 2, "readyReplicas": 1}
    await api.add("c1", DEPLOYMENTS, "full", status=status)
    await api.add("c2", DEPLOYMENTS, "new")
    await api.add("c1", CONFIGMAPS, "cm", data={"a": "1", "b": "2"})
    await api.add("c1", "networking.k8s.io/ingresses", "in")
    return api


@pytest.fixture
def run(
    api: QueryApi,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    monkeypatch.setenv("FLEETBUS_API_URL", api.url)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def run_command(*argv: str) -> Ended:
        capsys.readouterr()
        status = await asyncio.to_thread(main, argv)
        return Ended.read(status, capsys)

    return run_command


@pytest.mark.usefixtures("fleet")
async def test_t19_pods_newest_first_also_one_without_containers(run: Run):
    ended = await run("list", "pods")

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[0].split() == POD_HEAD.split()
    assert ended.rows[1:] == [
        ["c2", "web", "prod", "n1", "10.0.0.1", "Running", "web", "nginx:1"],
        ["c1", "peer", "prod", "n1", "10.0.0.1", "Running", "web", "nginx:1"],
        ["c1", "web", "prod", "n1", "10.0.0.1", "Running", "web", "nginx:1"],
        ["c1", "bare", "test", *["<none>"] * 5],
    ]


@pytest.mark.usefixtures("fleet")
async def test_t19_deployments_configmaps_and_others(run: Run):
    deployments = await run("list", "deployments")
    configmaps = await run("list", "configmaps")
    others = await run("list", "ingresses")

    assert deployments.rows == [
        ["CLUSTER", "NAME", "NAMESPACE", "TOTAL", "AVAILABLE", "READY"],
        ["c1", "full", "prod", "3", "2", "1"],
        ["c2", "new", "prod", "0", "0", "0"],
    ]
    assert configmaps.rows == [
        ["CLUSTER", "NAME", "NAMESPACE", "DATA"],
        ["c1", "cm", "prod", "2"],
    ]
    assert others.rows == [["CLUSTER", "NAME", "NAMESPACE"], ["c1", "in", "prod"]]


@pytest.mark.usefixtures("fleet")
async def test_t19_clusters(run: Run):
    ended = await run("list", "clusters")
    one = await run("list", "clusters", "--name", "c2")

    assert ended.rows == [
        ["NAME", "VERSION", "HOST", "PLATFORM", "ISMASTER", "STATUS"],
        ["c1", "v1.33.1", "https://c1", "linux/arm64", "true", "Running"],
        ["c2", "v1.32.0", "https://c2", "<none>", "false", "Running"],
    ]
    assert one.rows == [ended.rows[0], ended.rows[2]]


@pytest.mark.usefixtures("fleet")
async def test_t19_filters_alone_and_together(run: Run):
    cases = {
        ("--clusterName", "c2"): ["c2/web"],
        ("--name", "web"): ["c2/web", "c1/web"],
        ("-n", "test"): ["c1/bare"],
        ("--namespace=prod", "--name=web", "--clusterName=c1"): ["c1/web"],
    }
    for argv, expected in cases.items():
        ended = await run("list", "v1.pods", *argv)
        assert [f"{row[0]}/{row[1]}" for row in ended.rows[1:]] == expected, argv


@pytest.mark.usefixtures("fleet")
async def test_t19_an_unknown_value_leaves_the_head_and_status_0(run: Run):
    for argv in (("--name", "zz"), ("-n", "zz"), ("--clusterName", "zz")):
        ended = await run("list", "pods", *argv)

        assert (ended.status, ended.out) == (0, f"{POD_HEAD}\n"), argv


@pytest.mark.usefixtures("fleet")
async def test_t19_names_of_the_seed_also_without_a_verb(run: Run):
    for name in ("pods", "v1.pods", "core.v1.pods", "v1/pods", "core/v1/pods"):
        assert len((await run(name)).rows) == 5, name
    for name in ("apps.v1.deployments", "apps/v1/deployments", "v1.apps.deployments"):
        assert len((await run("list", name)).rows) == 3, name
    assert (await run("v1.configmaps", "--name", "cm")).rows[1][1] == "cm"
    forms = ("networking.k8s.io.v1.ingresses", "networking.k8s.io/v1/ingresses")
    for name in (*forms, "v1.networking.k8s.io.ingresses", "ingresses.networking.k8s.io", "ing"):
        assert (await run("list", name)).rows[1] == ["c1", "in", "prod"], name


@pytest.mark.usefixtures("fleet")
async def test_t19_an_unknown_resource_is_status_1(run: Run):
    ended = await run("list", "foos")

    assert (ended.status, ended.out) == (1, "")
    assert "foos" in ended.err


@pytest.mark.usefixtures("fleet")
async def test_t19_describe_prints_yaml_of_each_hit_with_its_cluster(run: Run):
    ended = await run("describe", "pods", "--name", "web")
    whole = await run("describe", "pods", "--name", "web", "--show-managed-fields")

    parts = [document for document in ended.out.split("-" * 40 + "\n") if document]
    assert [document.splitlines()[0] for document in parts] == ["# cluster: c2", "# cluster: c1"]
    assert all("managedFields" not in yaml.safe_load(document)["metadata"] for document in parts)
    assert "managedFields" in whole.out
    assert (await run("describe", "pods", "--name", "zz")).status == 0


@pytest.mark.usefixtures("fleet")
async def test_list_as_json_and_yaml(run: Run):
    answer = json.loads((await run("list", "cm", "-o", "json")).out)
    (tree,) = yaml.safe_load_all((await run("list", "cm", "-o", "yaml")).out)

    assert answer["items"][0]["object"] == tree


@pytest.mark.usefixtures("fleet")
async def test_t19_wide_adds_columns_after_those_of_the_seed(api: QueryApi, run: Run):
    await api.add("c1", PODS, "late", labels={"app": "web"}, created="2026-02-01T00:00:00Z")
    narrow = await run("list", "pods")
    wide = await run("list", "pods", "-o", "wide")

    heads = narrow.out.splitlines()[0].split()
    assert wide.rows[0] == [*heads, "CONTAINERS", "IMAGES", "AGE", "LABELS"]
    assert wide.rows[1][-1] == "app=web"
    assert wide.rows[2][8:10] == ["web,x", "nginx:1,y"]
    deployments = (await run("list", "deployments", "-o", "wide")).rows
    assert deployments[0][-5:] == ["CONTAINERS", "IMAGES", "SELECTOR", "AGE", "LABELS"]
    clusters = (await run("list", "clusters", "-o", "wide")).rows
    assert clusters[0][-3:] == ["LAST", "ANSWER", "LABELS"]
    assert clusters[1][6:] == [*clusters[1][6:7], "ago", "<none>"]


@pytest.mark.usefixtures("fleet")
async def test_the_configuration_is_created_at_the_first_use_and_never_overwritten(
    api: QueryApi, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / ".multi-cluster-operator" / "config"
    await run("list", "foos")
    await run("list", "pods", "--api-url", api.url)
    assert not file.exists(), "neither a failure nor an address that was given once"
    await run("list", "pods")
    port = api.url.rpartition(":")[2]
    config = yaml.safe_load(file.read_text())
    assert config == {"serverIP": "127.0.0.1", "serverPort": int(port)}
    monkeypatch.delenv("FLEETBUS_API_URL")
    assert (await run("list", "pods")).status == 0, "it is what tells where the query API is"
    file.write_text("serverPort: 1\n")
    ended = await run("list", "pods")
    assert ended.status == 1
    assert f"127.0.0.1:1 (an address of {file}) does not answer" in ended.err
    assert file.read_text() == "serverPort: 1\n"
    file.write_text("server: many\n")
    ended = await run("list", "pods")
    assert (ended.status, "'many' is not a port" in ended.err) == (2, True)
    file.write_text(f"server: {api.url}\n")
    assert (await run("list", "pods")).status == 0


async def test_a4_list_says_which_cluster_is_behind(fleet: QueryApi, run: Run):
    await fleet.add_cluster("c2", reported_ago=200)

    for resource in ("pods", "clusters"):
        ended = await run("list", resource)
        assert ended.status == 0
        assert "warning: c2 is incomplete" in ended.err


async def test_get_is_a_verb_of_fleetbus_and_does_nothing_here(run: Run):
    ended = await run("get", "pods")

    assert (ended.status, ended.out) == (2, "")
    assert "`fleetbus get`" in ended.err


@pytest.mark.usefixtures("fleet")  # by then the server has logged that it found its store
async def test_bad_usage_is_status_2(run: Run):
    for argv in (
        (),
        ("list",),
        ("list", "pods", "--nope"),
        ("list", "a..b"),
        ("--name", "x"),
        ("join", "c3"),
        ("join", "c3", "--file", "/nowhere"),
        ("unjoin",),
    ):
        ended = await run(*argv)

        assert (ended.status, ended.out) == (2, ""), argv
        assert "Traceback" not in ended.err


async def test_an_api_that_does_not_answer_is_status_1(run: Run):
    for resource in ("pods", "clusters"):
        ended = await run("list", resource, "--api-url", "http://127.0.0.1:1")

        assert ended.status == 1
        assert "does not answer" in ended.err
