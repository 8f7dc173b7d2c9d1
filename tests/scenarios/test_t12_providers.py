"""T12: several providers side by side, filters, hub and spokes.

Not here: a provider that is added to a running process (what a provider reads is added and
removed instead), and the command line's list of clusters.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
import yaml

from fleetbus.clusters.providers.file import FileProvider
from fleetbus.clusters.providers.kubeconfig import KubeconfigProvider
from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.kube.selectors import LabelSelector
from fleetbus.reconcile import Request, Result
from fleetbus.snapshot.reads.query import ListQuery
from support.eventually import eventually
from support.full import FULL
from support.rigs.fleet import Recorder, Rig
from support.rigs.query_api import served
from support.rigs.scenario import MAP_KEY, MAPS, WITHIN, Scenario, access, scenario
from support.servers.plain_http import http_client

OpenRig = Callable[..., Awaitable[Rig]]
SERVERS = ("zoo", "island1", "jungle", "island2")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    if not FULL:
        for provider in (FileProvider, KubeconfigProvider):
            defaults: Any = provider.__init__.__kwdefaults__
            monkeypatch.setitem(defaults, "every", timedelta(milliseconds=50))


def put(path: pathlib.Path, document: Any) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(yaml.safe_dump(document))
    partial.rename(path)


def cloud(folder: pathlib.Path, number: int, *, prefixed: bool = True) -> dict[str, Any]:
    prefix = {"prefix": f"cloud{number}"} if prefixed else {}
    return {"type": "kubeconfig", "paths": [str(folder / f"cloud{number}.yaml")], **prefix}


@pytest.mark.slow
async def test_t12_two_clouds_with_equal_names_stay_apart_come_and_go(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig(*SERVERS)
    second = tmp_path / "cloud2.yaml"
    async with scenario(rig) as story:
        story.write("island1", "crusoe", type="human")
        story.write("island2", "selkirk", type="human")
        story.use(cloud(tmp_path, 1), cloud(tmp_path, 2))
        put(tmp_path / "cloud1.yaml", access(rig, "zoo", island="island1"))
        recorder = Recorder(Controller("clouds"), MAPS)
        recorder.controller.watch(MAPS)
        story.start_reconciler(recorder)
        await story.start_pool()
        await story.synced("cloud1-zoo", "cloud1-island")
        opened = [story.watches_opened(name) for name in ("zoo", "island1")]
        listed = [story.lists_made(name) for name in ("zoo", "island1")]

        put(second, access(rig, "jungle", island="island2"))
        await story.synced("cloud1-zoo", "cloud1-island", "cloud2-jungle", "cloud2-island")
        assert await humans(story) == [("cloud1-island", "crusoe"), ("cloud2-island", "selkirk")]
        async with served(rig.shared.redis_url, tmp_path) as url, http_client(url) as client:
            answer = json.loads((await client.get("/fleet/v1/clusters")).text)
        names = {(each["name"], each["provider"]) for each in answer["items"]}
        assert names == {
            (name, "kubeconfig")
            for name in ("cloud1-zoo", "cloud1-island", "cloud2-jungle", "cloud2-island")
        }
        await story.close()

        second.unlink()
        await eventually(lambda: story.are_members("cloud1-zoo", "cloud1-island"), WITHIN)
        await eventually(lambda: not rig.clusters["island2"].open_watches, WITHIN)
        await eventually(lambda: has_humans(story, ("cloud1-island", "crusoe")), WITHIN)
        assert [story.lists_made(name) for name in ("zoo", "island1")] == listed
        if not rig.is_wide:  # two members of a pool hand watches over, without a list
            assert [story.watches_opened(name) for name in ("zoo", "island1")] == opened
        assert not story.deletions()
        await rig.aclose()


async def has_humans(story: Scenario, *expected: tuple[str, str]) -> bool:
    return await humans(story) == [*expected]


async def humans(story: Scenario) -> list[tuple[str, str]]:
    query = ListQuery(
        clusters=["cloud1-island", "cloud2-island"],
        resource=MAP_KEY,
        labels=LabelSelector.parse("type=human"),
    )
    return sorted((e.cluster, e.name) for e in (await story.rig.reader.list(query)).entries)


@pytest.mark.slow
async def test_t12_without_prefixes_the_second_of_one_name_is_refused_and_the_first_goes_on(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig(*SERVERS)
    async with scenario(rig) as story:
        story.write("island1", "crusoe")
        story.write("island2", "selkirk")
        story.use(cloud(tmp_path, 1, prefixed=False), cloud(tmp_path, 2, prefixed=False))
        put(tmp_path / "cloud1.yaml", access(rig, "zoo", island="island1"))
        story.start_reconciler()
        await story.start_pool()
        await story.synced("zoo", "island")
        put(tmp_path / "cloud2.yaml", access(rig, "jungle", island="island2"))
        await story.synced("zoo", "island", "jungle")
        assert {line["cluster"] for line in story.lines("cluster_name_taken")} == {"island"}
        assert await story.rows("island") == {"crusoe"}
        assert not rig.clusters["island2"].open_watches
        await story.close(seen_of=["island"])
        await rig.aclose()


@pytest.mark.slow
async def test_t12_filters_follow_labels_and_mappings_reach_any_cluster(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("hub", "m1", "m2")
    path = tmp_path / "clusters.yaml"

    def label(region: str) -> None:
        entries = [
            {"name": n, "kubeconfig": str(rig.kubeconfig), "context": n, "hub": n == "hub"}
            | {"labels": {"region": region if n == "m2" else "eu"}}
            for n in ("hub", "m1", "m2")
        ]
        put(path, {"clusters": entries})

    async def to_m1(_: Object | None, request: Request, fleet: Fleet) -> Iterable[Request]:
        del fleet
        return [Request(request.controller, "m1", request.namespace, request.name)]

    label("us")
    async with scenario(rig) as story:
        story.use({"type": "file", "path": str(path)})
        eu, hub, members, mapped = (
            Recorder(Controller(name), MAPS) for name in ("eu", "hub", "members", "mapped")
        )
        both, named = Recorder(Controller("both"), MAPS), Recorder(Controller("named"), MAPS)
        both.controller.watch(MAPS, clusters=["hub"])
        both.controller.watch(MAPS, clusters=["m2"])
        named.controller.watch(MAPS, clusters=["m?", "no-such-*"])
        eu.controller.watch(MAPS, clusters="region=eu")
        hub.controller.watch(MAPS, clusters=lambda info: info.hub)
        members.controller.watch(MAPS, clusters=lambda info: not info.hub)
        mapped.controller.watch(MAPS, clusters=["hub"], map=to_m1)
        story.start_reconciler(eu, hub, members, mapped, both, named)
        await story.start_pool()
        await story.synced("hub", "m1", "m2")
        for server in ("hub", "m1", "m2"):
            story.write(server, f"of-{server}")
        await eventually(lambda: wrote(eu) == {"hub:of-hub", "m1:of-m1"}, WITHIN)
        await eventually(lambda: wrote(hub) == {"hub:of-hub"}, WITHIN)
        await eventually(lambda: wrote(members) == {"m1:of-m1", "m2:of-m2"}, WITHIN)
        await eventually(lambda: wrote(mapped) == {"m1:of-hub"}, WITHIN)
        await eventually(lambda: wrote(both) == {"hub:of-hub", "m2:of-m2"}, WITHIN)
        await eventually(lambda: wrote(named) == {"m1:of-m1", "m2:of-m2"}, WITHIN)
        await story.quiet()
        assert wrote(eu) == {"hub:of-hub", "m1:of-m1"}
        assert wrote(mapped) == {"m1:of-hub"}

        label("eu")

        def is_in() -> bool:
            story.write("m2", "later", str(len(eu.runs)))
            return "m2:later" in wrote(eu)

        await eventually(is_in, WITHIN)
        # What was there before the change has come in without a change of its own.
        await eventually(lambda: "m2:of-m2" in wrote(eu), WITHIN)
        label("us")
        await eventually(lambda: {"m2:of-m2", "m2:later"} <= reported_to_have_left(eu), WITHIN)
        await story.quiet()
        assert reported_to_have_left(eu) == {"m2:of-m2", "m2:later"}
        assert not reported_to_have_left(named)
        assert not story.deletions()
        await rig.aclose()


class Needy(Recorder):
    """Reads of another cluster, which may not be there yet."""

    served = 0

    async def _note(self, request: Request, fleet: Fleet) -> Result | None:
        await super()._note(request, fleet)
        await fleet.cluster("m2").get(MAPS, "default", "x")
        self.served += 1
        return None


@pytest.mark.slow
async def test_t12_what_needs_a_cluster_waits_for_its_join_and_what_is_for_none_ends(
    open_rig: OpenRig, tmp_path: pathlib.Path
) -> None:
    rig = await open_rig("m1", "m2")

    async def to_gone(_: Object | None, request: Request, fleet: Fleet) -> Iterable[Request]:
        del fleet
        return [
            Request(request.controller, cluster, request.namespace, request.name)
            for cluster in ("gone", "m2")
        ]

    def join(*names: str) -> None:
        entries = [{"name": n, "kubeconfig": str(rig.kubeconfig), "context": n} for n in names]
        put(tmp_path / "clusters.yaml", {"clusters": entries})

    join("m1")
    async with scenario(rig) as story:
        story.use({"type": "file", "path": str(tmp_path / "clusters.yaml")})
        needy, ghost = Needy(Controller("needy"), MAPS), Recorder(Controller("ghost"), MAPS)
        needy.controller.watch(MAPS, clusters=["m1"], namespaces=["default"])
        ghost.controller.watch(MAPS, clusters=["m1"], namespaces=["default"], map=to_gone)
        story.start_reconciler(needy, ghost)
        await story.start_pool()
        story.write("m1", "w")
        await eventually(lambda: story.lines("reconcile_failed"), WITHIN)
        await rig.quiet("ghost", WITHIN)
        assert not needy.served
        assert not ghost.runs
        join("m1", "m2")
        await eventually(lambda: needy.served == 1, WITHIN)
        await story.quiet()
        # Q9: what named a cluster that was not there yet was dropped, and is woken by its join.
        await eventually(lambda: ghost.keys() == {("m2", "default", "w")}, WITHIN)
        # A process that has not read of m2 yet may take what another one enqueued for it: that ends
        # there, and is enqueued anew as soon as this process has read of it.
        assert {line["controller"] for line in story.lines("cluster_left")} <= {"ghost"}
        assert {line["controller"] for line in story.lines("reconcile_failed")} == {"needy"}
        await rig.aclose()


def wrote(recorder: Recorder) -> set[str]:
    """Cluster and name, but for what the API servers keep for themselves."""
    places = recorder.keys()
    return {f"{cluster}:{name}" for cluster, where, name in places if where != "kube-system"}


def reported_to_have_left(recorder: Recorder) -> set[str]:
    requests = [r.request for r in recorder.runs if r.request.namespace != "kube-system"]
    return {f"{request.cluster}:{request.name}" for request in requests if request.left}
