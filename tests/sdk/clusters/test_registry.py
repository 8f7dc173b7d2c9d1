"""The registry: new → engage, gone → disengage, equal → nothing, different → replace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers.build import Prefixed, build_clusters, build_provider
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import ClusterNotFound, ConfigError, NotEngaged
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.settings import ProviderSettings, SharedSettings
from fleetbus_proto.errors import InvalidName
from support.eventually import eventually
from support.rows import each_row


class ListProvider:
    """A provider whose sets a test puts in."""

    def __init__(self, name: str = "list") -> None:
        self.name = name
        self._sets: asyncio.Queue[list[ClusterInfo]] = asyncio.Queue()

    def tell(self, *infos: ClusterInfo) -> None:
        self._sets.put_nowait(list(infos))

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        while True:
            yield await self._sets.get()


def info(name: str, server: str = "http://127.0.0.1:1", **changes: Any) -> ClusterInfo:
    # The document is never opened here: equality is all that counts.
    fields: dict[str, Any] = {"provider": "list", "config": KubeConfig(server)}
    fields.update(changes)
    return ClusterInfo(name=name, **fields)


@asynccontextmanager
async def running(clusters: Clusters) -> AsyncGenerator[Clusters]:
    task = asyncio.create_task(clusters.run())
    try:
        yield clusters
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(clusters: Clusters) -> list[str]:
    return [found.name for found in clusters.all()]


async def test_clusters_join_and_leave_as_the_provider_tells():
    provider = ListProvider()
    async with running(Clusters([provider])) as clusters:
        provider.tell(info("b"), info("a"))
        await clusters.known()
        assert names(clusters) == ["a", "b"]
        provider.tell(info("b"), info("c"))
        await eventually(lambda: names(clusters) == ["b", "c"])
        assert clusters.get("a") is None


@each_row(
    ("name", "reported"),
    [
        ("eu-1", r"'eu-1' is not in the fleet; did you mean 'eu1'\?$"),
        ("mars", "'mars' is not in the fleet$"),
        ("", "fleet: the name is empty, like the hub's in a fleet without a hub"),
    ],
)
async def test_a_cluster_that_is_not_in_the_fleet_is_reported_with_what_may_be_meant(
    name: str, reported: str
):
    provider = ListProvider()
    async with running(Clusters([provider])) as clusters:
        provider.tell(info("eu1"), info("us1"))
        await clusters.known()
        with pytest.raises(ClusterNotFound, match=reported):
            clusters.client(name)


async def test_an_equal_set_is_no_change_and_a_different_one_is_reported_once():
    provider = ListProvider()
    reported: list[list[str]] = []
    async with running(Clusters([provider])) as clusters:
        clusters.on_change(lambda: reported.append(names(clusters)))
        provider.tell(info("a"))
        provider.tell(info("a"))
        provider.tell(info("a", labels={"x": "y"}))
        provider.tell()
        await eventually(lambda: reported and reported[-1] == [])
    assert reported == [["a"], ["a"], []]


async def test_a_client_is_kept_while_its_access_data_is_and_replaced_with_it():
    provider = ListProvider()
    async with running(Clusters([provider])) as clusters:
        provider.tell(info("a"))
        await clusters.known()
        first = clusters.client("a")
        provider.tell(info("a", labels={"region": "eu"}, suspended=True))
        await eventually(lambda: clusters.all()[0].suspended)
        assert clusters.client("a") is first
        provider.tell(info("a", "http://elsewhere"))
        await eventually(lambda: clusters.client("a") is not first)


async def test_a_cluster_that_left_and_came_back_has_a_new_client():
    provider = ListProvider()
    async with running(Clusters([provider])) as clusters:
        provider.tell(info("a"))
        await clusters.known()
        first = clusters.client("a")
        provider.tell()
        await eventually(lambda: not clusters.all())
        with pytest.raises(ClusterNotFound, match="'a'"):
            clusters.client("a")
        provider.tell(info("a"))
        await eventually(clusters.all)
        assert clusters.client("a") is not first


async def test_p14_before_all_providers_have_reported_absence_means_nothing():
    first, second = ListProvider("first"), ListProvider("second")
    async with running(Clusters([first, second])) as clusters:
        first.tell(info("a"))
        await eventually(clusters.all)
        assert not clusters.is_known
        with pytest.raises(NotEngaged, match="have not reported"):
            clusters.client("b")
        second.tell()
        await clusters.known()
        with pytest.raises(ClusterNotFound):
            clusters.client("b")


async def test_a_cluster_with_a_problem_is_in_the_fleet_and_cannot_be_used():
    provider = ListProvider()
    async with running(Clusters([provider])) as clusters:
        provider.tell(info("a", config=None, problem="no such file"))
        await clusters.known()
        assert names(clusters) == ["a"]
        with pytest.raises(NotEngaged, match="cluster 'a': no such file"):
            clusters.client("a")


async def test_s7_a_member_without_access_data_is_never_asked_with_our_own_service_account():
    provider = ListProvider()
    hub = ClusterInfo(name="hub", hub=True, provider="hub", config=None)
    async with running(Clusters([provider], hub=hub)) as clusters:
        provider.tell(info("a", config=None))
        await clusters.known()
        with pytest.raises(NotEngaged, match="'list' gave no access data"):
            clusters.client("a")
        assert clusters.client("hub")


async def test_of_two_providers_with_one_name_the_earlier_wins_whoever_reported_first():
    early, late = ListProvider("early"), ListProvider("late")
    async with running(Clusters([early, late])) as clusters:
        with capture_logs() as logs:
            late.tell(info("a", provider="late"))
            await eventually(clusters.all)
            early.tell(info("a", provider="early"), info("b", provider="early"))
            await clusters.known()
        assert [found.provider for found in clusters.all()] == ["early", "early"]
        assert [line["taken_by"] for line in logs if line["event"] == "cluster_name_taken"] == [
            "early"
        ]


async def test_the_hub_is_a_cluster_of_its_own_or_one_that_a_provider_knows():
    provider = ListProvider()
    hub = info("hub", hub=True, provider="hub")
    async with running(Clusters([provider], hub=hub)) as clusters:
        provider.tell(info("a"))
        await clusters.known()
        assert (clusters.hub, names(clusters)) == ("hub", ["a", "hub"])
        provider.tell(info("a"), info("hub", labels={"x": "y"}))
        await eventually(lambda: clusters.all()[1].labels)
        assert clusters.hub == "hub"
        assert clusters.all()[1].provider == "list"


async def test_a_fleet_without_providers_is_known_at_once():
    clusters = Clusters([], hub=info("hub", hub=True))
    assert clusters.is_known
    assert (clusters.hub, names(clusters)) == ("hub", ["hub"])
    assert Clusters([]).hub == ""


def test_a_cluster_name_must_be_a_dns_label():
    with pytest.raises(InvalidName):
        info("Not_A_Label")


# --- providers from settings ------------------------------------------------------------------


async def test_a_prefix_stands_before_every_name():
    provider = ListProvider()
    async with running(Clusters([Prefixed(provider, "kind")])) as clusters:
        provider.tell(info("a"), info("b"))
        await clusters.known()
        assert names(clusters) == ["kind-a", "kind-b"]


async def test_a_name_that_is_too_long_with_its_prefix_is_skipped_and_harms_no_other():
    provider = ListProvider()
    async with running(Clusters([Prefixed(provider, "kind")])) as clusters:
        with capture_logs() as logs:
            provider.tell(info("a" * 60), info("b"))
            await clusters.known()
        assert names(clusters) == ["kind-b"]
        assert [line["cluster"] for line in logs if line["event"] == "cluster_skipped"] == [
            "a" * 60
        ]


@each_row(
    ("settings", "reason"),
    [
        (
            {"type": "nonsense"},
            "'nonsense' is not one of cluster, cluster-api, cluster-inventory, file, kind",
        ),
        ({"type": "file"}, "provider 'file': field 'path' must be a string"),
        ({"type": "file", "path": 7}, "provider 'file': field 'path' must be a string"),
        ({"type": "file", "path": "x", "every": 1}, "provider 'file': unknown field every"),
        ({"type": "file", "path": "/no/such/file"}, "/no/such/file: cannot be read"),
        ({"type": "kubeconfig"}, "provider 'kubeconfig': field 'paths' must be a list of strings"),
        ({"type": "kubeconfig", "paths": "x"}, "field 'paths' must be a list of strings"),
        ({"type": "kubeconfig", "paths": ["x"], "contexts": [1]}, "field 'contexts' must be"),
        ({"type": "cluster", "path": "x"}, "provider 'cluster': unknown field path"),
        ({"type": "kubeconfig", "paths": [], "prefix": "A_"}, "FLEETBUS_PROVIDERS: prefix: "),
    ],
)
def test_a_wrong_provider_setting_is_one_line_that_names_the_field(
    settings: dict[str, Any], reason: str
):
    with pytest.raises(ConfigError) as caught:
        build_provider(ProviderSettings(**settings), None)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_provider_with_a_prefix_keeps_its_name():
    settings = ProviderSettings.model_validate({"type": "kubeconfig", "prefix": "a", "paths": []})
    provider = build_provider(settings, None)
    assert provider.name == "kubeconfig"


def test_a_hub_kubeconfig_that_is_missing_is_named():
    settings = SharedSettings.model_validate({"hub_kubeconfig": "/no/such/hub", "hub_cluster": "h"})
    with pytest.raises(ConfigError, match="/no/such/hub"):
        build_clusters(settings)
