"""T6: watch filters; an object that stops matching wakes once more and says that it left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.reconcile import Request, Result
from support.eventually import eventually
from support.rigs.fleet import Recorder, Rig
from support.rigs.scenario import MAPS, WITHIN, Scenario, scenario

OpenRig = Callable[..., Awaitable[Rig]]
ALL = "default/all"


@dataclass
class Watcher(Recorder):
    """Records, too, which requests said that their object had left the selection."""

    left: list[str] = field(default_factory=list[str])

    async def _note(self, request: Request, fleet: Fleet) -> Result | None:
        if request.left:
            self.left.append(_place(request))
        return await super()._note(request, fleet)

    def seen(self) -> list[str]:
        return [_place(run.request) for run in self.runs]


def _place(request: Request) -> str:
    return f"{request.cluster}:{request.namespace}/{request.name}"


def watching(name: str, **filters: Any) -> Watcher:
    controller = Controller(name)
    controller.watch(MAPS, **filters)
    return Watcher(controller, MAPS)


def is_on(_old: Object | None, new: Object | None) -> bool:
    return new is None or new.get("data", {}).get("on") == "yes"


def is_data_changed(old: Object | None, new: Object | None) -> bool:
    return bool(old and new and old.get("data") != new.get("data"))


def put(
    rig: Rig,
    place: str,
    *,
    labels: dict[str, str | None] | None = None,
    annotations: dict[str, str | None] | None = None,
    **data: str,
) -> None:
    """Create or change a config map in both clusters."""
    namespace, _, name = place.partition("/")
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    for cluster in rig.clusters.values():
        if cluster.get(MAPS, namespace, name) is None:
            cluster.create(MAPS, {"metadata": metadata, "data": data}, namespace)
        else:
            cluster.patch(MAPS, namespace, name, {"metadata": metadata, "data": data})


def in_both(*places: str) -> set[str]:
    return {f"{cluster}:{place}" for cluster in ("a", "b") for place in places}


@pytest.mark.full  # tests/sdk/intake has each filter
async def test_t6_only_what_passes_all_four_filters_reaches_the_reconciler(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", "b")
    for cluster in rig.clusters.values():
        for namespace in ("n1", "n2", "n3"):
            cluster.create("v1/namespaces", {"metadata": {"name": namespace}})
    four = {"selector": "app=web", "annotation_selector": "team", "predicate": is_on}
    every = watching("every", namespaces=["n1", "n2"], **four)
    alone = {
        "by-namespace": ({"namespaces": ["n1", "n2"]}, {"n1/all", "n2/all", "n1/none"}),
        "by-label": ({"selector": "app in (web, x)"}, {"n1/all", "n2/all", "n3/all"}),
        "by-absence": ({"selector": "!app"}, {"n1/none"}),
        "by-annotation": ({"annotation_selector": "team!=y,team"}, {"n1/all", "n2/all", "n3/all"}),
        "by-predicate": ({"predicate": is_on}, {"n1/all", "n2/all", "n3/all"}),
    }
    parts = {name: watching(name, **filters) for name, (filters, _) in alone.items()}
    metadata: dict[str, Any] = {"labels": {"app": "web"}, "annotations": {"team": "x"}, "on": "yes"}
    async with scenario(rig) as story:
        await start(story, every, *parts.values())
        for place in ("n1/all", "n2/all", "n3/all"):
            put(rig, place, **metadata)
        put(rig, "n1/none")
        await eventually(lambda: set(every.seen()) == in_both("n1/all", "n2/all"), WITHIN)
        for name, (_, expected) in alone.items():
            place_of_part = parts[name]
            await eventually(lambda p=place_of_part, e=expected: _own(p) == in_both(*e), WITHIN)
        await story.quiet()
        assert set(every.seen()) == in_both("n1/all", "n2/all")
        for name, (_, expected) in alone.items():
            assert _own(parts[name]) == in_both(*expected), name
        assert not every.left
        await rig.aclose()


def _own(recorder: Watcher) -> set[str]:
    """The objects seen in our namespaces; API servers create config maps of their own."""
    return {place for place in recorder.seen() if place.partition(":")[2][:1] == "n"}


async def start(story: Scenario, *recorders: Watcher) -> None:
    story.start_reconciler(*recorders)
    for cluster in story.rig.clusters:
        story.rig.start_watcher(cluster, resources=("configmaps",))
    await story.synced(*story.rig.clusters)
    # A process that is not ready yet may still enqueue all that is known, what has left as well.
    await eventually(lambda: are_ready(story), WITHIN)
    for recorder in recorders:
        await story.rig.quiet(recorder.controller.name, WITHIN)


async def are_ready(story: Scenario) -> bool:
    urls = [f"http://127.0.0.1:{line['port']}/readyz" for line in story.lines("health_served")]
    async with aiohttp.ClientSession() as session:
        answers = [(await session.get(url)).status for url in urls]
    return set(answers) == {200}


@pytest.mark.full  # tests/sdk/intake has it, without the watchers
async def test_t6_leaving_is_one_further_run_and_a_predicate_sees_old_and_new(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", "b")
    labelled = watching("labelled", selector="app=web")
    annotated = watching("annotated", annotation_selector="team")
    on = watching("on", predicate=is_on)
    silent = watching("silent", selector="app=web", wake_on_leave=False)
    updates = watching("updates", predicate=is_data_changed)
    all_of_them = (labelled, annotated, on, silent, updates)
    async with scenario(rig) as story:
        await start(story, *all_of_them)
        put(rig, ALL, labels={"app": "web"}, annotations={"team": "x"}, on="yes")
        for recorder in (labelled, annotated, on, silent):
            await eventually(lambda r=recorder: set(r.seen()) == in_both(ALL), WITHIN)
        for recorder in all_of_them:
            await rig.quiet(recorder.controller.name, WITHIN)
        before = {r.controller.name: len(r.runs) for r in all_of_them}
        assert before["updates"] == 0  # a creation is no update
        put(rig, ALL, labels={"app": "db"}, annotations={"team": None}, on="yes")
        await eventually(lambda: sorted(labelled.left) == sorted(in_both(ALL)), WITHIN)
        await eventually(lambda: sorted(annotated.left) == sorted(in_both(ALL)), WITHIN)
        put(rig, ALL, labels={"app": "db"}, on="no")
        await eventually(lambda: sorted(on.left) == sorted(in_both(ALL)), WITHIN)
        await eventually(lambda: set(updates.seen()) == in_both(ALL), WITHIN)
        put(rig, ALL, labels={"app": "db", "x": "y"}, on="no")  # of no interest to anybody
        await story.quiet()
        runs = {r.controller.name: len(r.runs) - before[r.controller.name] for r in all_of_them}
        # `on` matches what has changed elsewhere too; the others ran for their leaving alone.
        assert runs.pop("on") in (2, 4)
        assert runs == {"labelled": 2, "annotated": 2, "silent": 0, "updates": 2}
        assert not silent.left
        assert not updates.left
        put(rig, ALL, labels={"app": "web"}, on="no")
        await eventually(lambda: len(silent.runs) == before["silent"] + 2, WITHIN)
        await eventually(lambda: len(labelled.runs) == before["labelled"] + 4, WITHIN)
        assert len(labelled.left) == 2  # it is back
        await rig.aclose()
