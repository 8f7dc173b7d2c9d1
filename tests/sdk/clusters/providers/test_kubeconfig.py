"""Provider `kubeconfig`: one cluster per context, one bad context harms no other (T9)."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers.kubeconfig import (
    KubeconfigProvider,
    Place,
    cluster_name,
    name_contexts,
)
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import server_of
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster
from support.eventually import eventually
from support.rows import each_row

QUICK = timedelta(milliseconds=10)


def _text(*names: str, **changes: Any) -> str:
    document: dict[str, Any] = {
        "clusters": [{"name": n, "cluster": {"server": f"https://{n}"}} for n in names],
        "contexts": [{"name": n, "context": {"cluster": n}} for n in names],
    }
    return yaml.safe_dump(document | changes)


async def _first(provider: KubeconfigProvider) -> list[ClusterInfo]:
    async with aclosing(provider.cluster_sets()) as sets:
        async for infos in sets:
            return infos
    raise AssertionError("the provider ended")


def _skipped() -> float:
    labels = {"provider": "kubeconfig"}
    return REGISTRY.get_sample_value("fleetbus_provider_skipped_entries", labels) or 0


def _names(infos: list[ClusterInfo]) -> list[str]:
    return [info.name for info in infos]


async def test_each_context_of_a_file_is_a_cluster(tmp_path: pathlib.Path):
    path = tmp_path / "any-name"
    path.write_text(_text("a", "b"))
    infos = await _first(KubeconfigProvider([path]))
    assert _names(infos) == ["a", "b"]
    assert [server_of(i.config) for i in infos if i.config] == ["https://a", "https://b"]
    assert {info.provider for info in infos} == {"kubeconfig"}


async def test_a_directory_is_searched_for_the_usual_names(tmp_path: pathlib.Path):
    for number, name in enumerate(
        [
            "kubeconfig.yaml",
            "kubeconfig.yml",
            "x.kubeconfig",
            "x.kubeconfig.yaml",
            "x.kubeconfig.yml",
            "config",
            "notes.yaml",
        ]
    ):
        (tmp_path / name).write_text(_text(f"c{number}"))
    infos = await _first(KubeconfigProvider([tmp_path]))
    assert sorted(_names(infos)) == ["c0", "c1", "c2", "c3", "c4"]


async def test_a_directory_in_which_no_file_has_such_a_name_is_reported(tmp_path: pathlib.Path):
    (tmp_path / "a.yaml").write_text(_text("a"))
    with capture_logs() as logs:
        assert await _first(KubeconfigProvider([tmp_path])) == []
    (reported,) = logs
    assert (reported["event"], reported["entry"]) == ("cluster_skipped", str(tmp_path))
    assert "*.kubeconfig" in reported["error"]
    (tmp_path / "kubeconfig.yaml").write_text(_text("b"))
    with capture_logs() as logs:
        assert _names(await _first(KubeconfigProvider([tmp_path]))) == ["b"]
    assert not logs


async def test_only_the_contexts_asked_for_are_taken_and_a_missing_one_is_reported(
    tmp_path: pathlib.Path,
):
    path = tmp_path / "k"
    path.write_text(_text("a", "b", "c"))
    with capture_logs() as logs:
        infos = await _first(KubeconfigProvider([path], only=["c", "a", "nowhere"]))
    assert _names(infos) == ["a", "c"]
    assert [line["entry"] for line in logs] == ["context 'nowhere'"]


async def test_t9_contexts_that_would_have_one_name_are_named_after_their_files_too(
    tmp_path: pathlib.Path,
):
    (tmp_path / "1.kubeconfig").write_text(_text("a_b", "x"))
    (tmp_path / "2.kubeconfig").write_text(_text("a-b"))
    infos = await _first(KubeconfigProvider([tmp_path]))
    assert [(i.name, i.config.context) for i in infos if i.config] == [
        ("1-a-b", "a_b"),
        ("x", "x"),
        ("2-a-b", "a-b"),
    ]
    assert infos[2].labels == {
        "fleetbus.dev/file": str(tmp_path / "2.kubeconfig"),
        "fleetbus.dev/context": "a-b",
    }


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["/d/x.kubeconfig", "/e/x.kubeconfig", "/d/x-y", "/d/kubeconfig.yml"]),
            st.sampled_from(["a", "A", "y-a", "x-a", "x-y-a", "-", "z" * 70, "z" * 80]),
        ).map(lambda place: (pathlib.Path(place[0]), place[1])),
        unique=True,
    )
)
def test_t9_names_are_legal_unique_and_independent_of_the_order(places: list[Place]):
    names, nameless = name_contexts(places)
    assert names.keys() | nameless.keys() == set(places)
    assert len(set(names.values())) == len(names)
    for name in names.values():
        check_cluster(name)
    assert name_contexts(places[::-1]) == (names, nameless)


async def test_t9_a_dead_context_is_a_condition_of_its_cluster(tmp_path: pathlib.Path):
    contexts = [
        {"name": "a", "context": {"cluster": "a"}},
        {"name": "dead", "context": {"cluster": "missing"}},
        {"name": "empty"},
    ]
    (tmp_path / "k").write_text(_text("a", contexts=contexts))
    infos = await _first(KubeconfigProvider([tmp_path / "k"]))
    assert _names(infos) == ["a", "dead", "empty"]
    assert infos[0].problem == ""
    assert "'missing'" in infos[1].problem
    assert "'empty'" in infos[2].problem


async def test_t9_a_name_that_no_cluster_can_have_is_skipped_by_name(tmp_path: pathlib.Path):
    (tmp_path / "k").write_text(_text("a", "---"))
    with capture_logs() as logs:
        infos = await _first(KubeconfigProvider([tmp_path / "k"]))
    assert _names(infos) == ["a"]
    assert [(line["event"], line["entry"]) for line in logs] == [
        ("cluster_skipped", f"{tmp_path / 'k'}: context '---'")
    ]


async def test_t9_an_unreadable_file_harms_no_other(tmp_path: pathlib.Path):
    (tmp_path / "1.kubeconfig").write_text("clusters: [")
    (tmp_path / "2.kubeconfig").write_text(_text("b"))
    KubeconfigProvider([])  # its series exists from here on
    before = _skipped()
    assert _names(await _first(KubeconfigProvider([tmp_path, tmp_path / "missing"]))) == ["b"]
    assert _skipped() == before + 2


def test_a_path_in_a_home_that_does_not_exist_is_a_configuration_error():
    with pytest.raises(ConfigError, match="no-such-user"):
        KubeconfigProvider(["~no-such-user/k"])


@each_row(
    ("context", "name"),
    [
        ("kind-main", "kind-main"),
        ("Admin@Cluster_1", "admin-cluster-1"),
        ("arn:aws:eks:eu-west-1:123:cluster/prod", "arn-aws-eks-eu-west-1-123-cluster-prod"),
        ("x" * 80, "x" * 63),
        ("y" * 62 + "--z", "y" * 62),
    ],
)
def test_a_contexts_name_becomes_a_legal_cluster_name(context: str, name: str):
    assert cluster_name(context) == name


@each_row("context", ["", "---", "___", "é☃"])
def test_a_context_of_which_nothing_is_left_has_no_name(context: str):
    with pytest.raises(InvalidName):
        cluster_name(context)


# --- following --------------------------------------------------------------------------------


@pytest.fixture
async def follow() -> AsyncGenerator[Callable[[pathlib.Path], list[list[ClusterInfo]]]]:
    """Collect the sets of a provider until the test ends."""
    tasks: list[asyncio.Task[None]] = []

    async def collect(path: pathlib.Path, take: Callable[[list[ClusterInfo]], None]) -> None:
        async with aclosing(KubeconfigProvider([path], every=QUICK).cluster_sets()) as sets:
            async for infos in sets:
                take(infos)

    def start(path: pathlib.Path) -> list[list[ClusterInfo]]:
        updates: list[list[ClusterInfo]] = []
        tasks.append(asyncio.create_task(collect(path, updates.append)))
        return updates

    yield start
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results), results


Follow = Callable[[pathlib.Path], list[list[ClusterInfo]]]


async def test_t9_files_that_come_and_go_are_noticed(tmp_path: pathlib.Path, follow: Follow):
    (tmp_path / "1.kubeconfig").write_text(_text("a"))
    updates = follow(tmp_path)
    await eventually(lambda: updates and _names(updates[-1]) == ["a"])
    (tmp_path / "2.kubeconfig").write_text(_text("b"))
    await eventually(lambda: _names(updates[-1]) == ["a", "b"])
    (tmp_path / "1.kubeconfig").unlink()
    await eventually(lambda: _names(updates[-1]) == ["b"])


async def test_t9_the_clusters_of_a_named_file_leave_with_it(
    tmp_path: pathlib.Path, follow: Follow
):
    path = tmp_path / "k"
    path.write_text(_text("a"))
    updates = follow(path)
    await eventually(lambda: updates and _names(updates[-1]) == ["a"])
    path.unlink()
    await eventually(lambda: not updates[-1])


async def test_t9_a_change_of_one_context_leaves_the_others_as_they_are(
    tmp_path: pathlib.Path, follow: Follow
):
    path = tmp_path / "k"
    path.write_text(_text("a", "b"))
    updates = follow(path)
    await eventually(lambda: updates)
    clusters = [
        {"name": "a", "cluster": {"server": "https://a"}},
        {"name": "b", "cluster": {"server": "https://elsewhere"}},
    ]
    path.write_text(_text("a", "b", clusters=clusters, **{"current-context": "b"}))
    await eventually(lambda: updates[-1] != updates[0])
    assert updates[-1][0] == updates[0][0]
    assert updates[-1][1] != updates[0][1]


async def test_while_a_file_is_being_written_what_it_said_stays_true(
    tmp_path: pathlib.Path, follow: Follow
):
    path = tmp_path / "k"
    contexts = [
        {"name": "a", "context": {"cluster": "a"}},
        {"name": "dead", "context": {"cluster": "missing"}},
    ]
    path.write_text(_text("a", contexts=contexts))
    updates = follow(path)
    await eventually(lambda: updates)
    path.write_text("clusters:\n- name")
    await eventually(lambda: len(updates) > 1)
    assert updates[1] == updates[0]
    path.write_text(_text("a", "b"))
    await eventually(lambda: _names(updates[-1]) == ["a", "b"])
    assert all(updates)
