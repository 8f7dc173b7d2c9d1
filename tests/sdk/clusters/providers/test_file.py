"""Provider `file`: both spellings, mistakes named by file and field, changes followed."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
import yaml

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers.file import FileProvider, read_clusters
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import server_of
from support.eventually import eventually
from support.rows import each_row

QUICK = timedelta(milliseconds=10)


def kubeconfig(server: str = "https://h:1", context: str = "ctx") -> str:
    return yaml.safe_dump(
        {
            "current-context": context,
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": context, "context": {"cluster": "c"}}],
        }
    )


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "eu1.kubeconfig").write_text(kubeconfig())
    return tmp_path


def _write(folder: pathlib.Path, *entries: Any) -> pathlib.Path:
    path = folder / "clusters.yaml"
    path.write_text(yaml.safe_dump({"clusters": list(entries)}))
    return path


def _plain(**changes: Any) -> dict[str, Any]:
    return {"name": "eu1", "kubeconfig": "eu1.kubeconfig"} | changes


def test_every_field_of_an_entry_is_read(folder: pathlib.Path):
    path = _write(
        folder,
        _plain(
            context="ctx",
            labels={"region": "eu"},
            hub=True,
            insecure=True,
            http=True,
            resources=["v1/pods", "*", {"resource": "pods", "namespaces": ["prod"]}],
            deny=["core/events"],
            suspend=True,
        ),
    )
    (info,) = read_clusters(path)
    assert (info.name, info.labels, info.hub, info.suspended) == (
        "eu1",
        {"region": "eu"},
        True,
        True,
    )
    assert info.resources == ("v1/pods", "*", {"resource": "pods", "namespaces": ["prod"]})
    assert info.deny == ("core/events",)
    assert info.provider == "file"
    assert info.config is not None
    assert (info.config.insecure, info.config.http) == (True, True)
    assert server_of(info.config) == "https://h:1"


def test_the_seeds_spelling_means_the_same(folder: pathlib.Path):
    metadata = {
        "clusterName": "eu1",
        "configPath": "eu1.kubeconfig",
        "insecure": True,
        "isMaster": True,
        "resources": [{"rType": "core.v1.pods"}, {"rType": "apps/v1/deployments"}],
    }
    plain_entry = _plain(insecure=True, hub=True, resources=["core.v1.pods", "apps/v1/deployments"])
    assert read_clusters(_write(folder, {"metadata": metadata})) == read_clusters(
        _write(folder, plain_entry)
    )


def test_a_kubeconfig_is_found_beside_the_file_in_home_and_anywhere(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    home = folder / "home"
    home.mkdir()
    (home / "k").write_text(kubeconfig("https://home"))
    monkeypatch.setenv("HOME", str(home))
    path = _write(
        folder,
        _plain(name="beside"),
        _plain(name="home", kubeconfig="~/k"),
        _plain(name="far", kubeconfig=str(folder / "eu1.kubeconfig")),
    )
    servers = [server_of(i.config) if i.config else i.problem for i in read_clusters(path)]
    assert servers == ["https://h:1", "https://home", "https://h:1"]


@each_row(
    ("entry", "field"),
    [
        (_plain(name="EU_1"), "clusters.1.name: "),
        (_plain(name="e" * 64), "clusters.1.name: "),
        (_plain(name=7), "clusters.1.name: "),
        ({"kubeconfig": "x"}, "clusters.1.name: "),
        ({"name": "x"}, "clusters.1.kubeconfig: "),
        (_plain(labels={"tier": 1}), "clusters.1.labels.tier: "),
        (_plain(labels=["a"]), "clusters.1.labels: "),
        (_plain(hub="perhaps"), "clusters.1.hub: "),
        (_plain(resources=["v1/pods", 7]), "clusters.1.resources.1: "),
        (_plain(deny="core/events"), "clusters.1.deny: "),
        (_plain(colour="red"), "clusters.1.colour: "),
        ("text", "clusters.1: "),
        (None, "clusters.1: "),
        ({"metadata": None}, "clusters.1.metadata: "),
        ({"metadata": {"clusterName": "x"}}, "clusters.1.metadata.configPath: "),
        (
            {"metadata": {"clusterName": "x", "configPath": "y", "resources": [{"type": "a"}]}},
            "clusters.1.metadata.resources.0.rType: ",
        ),
    ],
)
async def test_s7_a_wrong_entry_is_reported_by_file_and_field_and_harms_no_other(
    folder: pathlib.Path, entry: Any, field: str, capsys: pytest.CaptureFixture[str]
):
    path = _write(folder, _plain(name="good"), entry)
    async with aclosing(FileProvider(path).cluster_sets()) as sets:
        good, *broken = await anext(sets)
    assert (good.name, good.problem) == ("good", "")
    assert all(info.problem.startswith(f"{path}: {field}") for info in broken)
    assert all("\n" not in info.problem for info in broken)
    reported = capsys.readouterr().out
    assert f"{path}: {field}" in reported
    assert reported.count("cluster_skipped") == 1


def test_a_wrong_entry_with_a_name_is_a_cluster_with_a_problem(folder: pathlib.Path):
    foreign = {"metadata": {"clusterName": "us1"}}
    clusters = read_clusters(_write(folder, _plain(deny="all"), foreign, {"name": "EU_1"}))
    assert [(info.name, info.config) for info in clusters] == [("eu1", None), ("us1", None)]
    assert "clusters.1.metadata.configPath: Field required" in clusters[1].problem


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "field 'clusters' is missing or not a list"),
        ("[]", "field 'clusters' is missing or not a list"),
        ("clusters: {a: b}", "field 'clusters' is missing or not a list"),
        ("clusters: [", "invalid YAML"),
        ("clusters: [2024-13-45]", "invalid YAML"),
        ("clusters: " + "[" * 1000, "invalid YAML"),
        ("clusters: \xff\x00", "not UTF-8"),
    ],
)
def test_a_broken_file_is_one_line_that_names_it(folder: pathlib.Path, text: str, reason: str):
    path = folder / "clusters.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        FileProvider(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert "\n" not in message


def test_a_missing_file_is_named(tmp_path: pathlib.Path):
    with pytest.raises(ConfigError, match=r"clusters\.yaml: cannot be read"):
        FileProvider(tmp_path / "clusters.yaml")
    with pytest.raises(ConfigError, match="no-such-user"):
        FileProvider("~no-such-user/clusters.yaml")


def test_a_name_that_is_listed_twice_is_a_problem_of_that_cluster(folder: pathlib.Path):
    good, twice = read_clusters(_write(folder, _plain(name="good"), _plain(), _plain()))
    assert (good.problem, twice.name, twice.config) == ("", "eu1", None)
    assert "cluster eu1 is listed twice" in twice.problem


def test_two_hubs_are_a_problem_of_those_two(folder: pathlib.Path):
    metadata = {"clusterName": "b", "configPath": "eu1.kubeconfig", "isMaster": True}
    path = _write(folder, _plain(hub=True), {"metadata": metadata}, _plain(name="good"))
    *hubs, good = read_clusters(path)
    assert (good.name, good.problem) == ("good", "")
    assert [info.hub for info in hubs] == [False, False]
    assert all("more than one cluster is the hub" in info.problem for info in hubs)


@pytest.mark.parametrize(
    ("server", "changes", "problem"),
    [
        ("http://h:1", {}, "plain http, which only an explicit field allows"),
        ("http://h:1", {"http": True}, ""),
        ("https://169.254.169.254", {"http": True}, "169.254.169.254 is link-local"),
        ("https://127.0.0.1:6443", {}, ""),
        ("http://127.0.0.1:8001", {}, ""),
    ],
)
def test_s7_the_addresses_of_the_operators_own_files(
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    changes: dict[str, Any],
    problem: str,
):
    monkeypatch.delenv("FLEETBUS_ALLOW_LOOPBACK", raising=False)
    (folder / "eu1.kubeconfig").write_text(kubeconfig(server))
    (info,) = read_clusters(_write(folder, _plain(**changes)))
    assert (info.config is None) is bool(problem)
    assert problem in info.problem


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kubeconfig": "missing"}, "missing: cannot read the kubeconfig"),
        ({"kubeconfig": "~no-such-user/k"}, "no-such-user"),
        ({"context": "nowhere"}, "context 'nowhere' is not one of ctx"),
        ({"kubeconfig": "broken"}, "not a kubeconfig"),
        ({"kubeconfig": "currentless"}, "no current-context"),
    ],
)
def test_one_dead_entry_is_a_condition_of_its_cluster_and_harms_no_other(
    folder: pathlib.Path, changes: dict[str, str], problem: str
):
    (folder / "broken").write_text("a: b")
    (folder / "currentless").write_text(kubeconfig(context=""))
    good, dead = read_clusters(_write(folder, _plain(name="good"), _plain(**changes)))
    assert (good.problem, dead.config) == ("", None)
    assert problem in dead.problem


# --- following --------------------------------------------------------------------------------


async def _follow(provider: FileProvider, take: Callable[[list[ClusterInfo]], None]) -> None:
    async with aclosing(provider.cluster_sets()) as sets:
        async for infos in sets:
            take(infos)


@pytest.fixture
async def followed(folder: pathlib.Path) -> AsyncGenerator[list[list[ClusterInfo]]]:
    """The sets that a provider has yielded for `clusters.yaml`, oldest first."""
    updates: list[list[ClusterInfo]] = []
    provider = FileProvider(_write(folder, _plain()), every=QUICK)
    task = asyncio.create_task(_follow(provider, updates.append))
    await eventually(lambda: updates)
    yield updates
    assert not task.done(), task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_first_set_comes_at_once(followed: list[list[ClusterInfo]]):
    assert [info.name for info in followed[0]] == ["eu1"]


async def test_a_cluster_that_is_added_or_removed_is_noticed(
    folder: pathlib.Path, followed: list[list[ClusterInfo]]
):
    _write(folder, _plain(), _plain(name="eu2"))
    await eventually(lambda: [i.name for i in followed[-1]] == ["eu1", "eu2"])
    _write(folder, _plain(name="eu2"))
    await eventually(lambda: [i.name for i in followed[-1]] == ["eu2"])


async def test_a_changed_kubeconfig_is_noticed(
    folder: pathlib.Path, followed: list[list[ClusterInfo]]
):
    before = followed[-1]
    (folder / "eu1.kubeconfig").write_text(kubeconfig("https://elsewhere:1"))
    await eventually(lambda: followed[-1] != before)


async def test_a_kubeconfig_that_appears_later_repairs_its_cluster(
    folder: pathlib.Path, followed: list[list[ClusterInfo]]
):
    _write(folder, _plain(kubeconfig="later"))
    await eventually(lambda: followed[-1][0].problem)
    (folder / "later").write_text(kubeconfig())
    await eventually(lambda: not followed[-1][0].problem)
    assert followed[-1][0].config is not None


async def test_while_the_file_is_wrong_or_gone_what_it_said_stays_true(
    folder: pathlib.Path, followed: list[list[ClusterInfo]]
):
    path = folder / "clusters.yaml"
    path.write_text("clusters: [")
    await eventually(lambda: len(followed) > 1)
    path.unlink()
    await eventually(lambda: len(followed) > 2)
    assert all(infos == followed[0] for infos in followed)
    _write(folder, _plain(name="back"))
    await eventually(lambda: [i.name for i in followed[-1]] == ["back"])
