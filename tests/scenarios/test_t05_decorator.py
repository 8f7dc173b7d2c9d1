"""T5: ConfigMaps with a label get an annotation, in their own cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY

import fleetbus
from support.eventually import eventually, never
from support.full import FULL
from support.rigs.fleet import Rig
from support.rigs.scenario import MAPS, QUIET, WITHIN

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver import LoggedRequest

Object = dict[str, Any]
LABELLED = {"labels": {"decorate": "true"}}


def annotation(rig: Rig, cluster: str, name: str) -> object:
    obj: Object = rig.clusters[cluster].get(MAPS, "default", name) or {"metadata": {}}
    annotations: Object = obj["metadata"].get("annotations") or {}
    return annotations.get("x")


def writes(rig: Rig, cluster: str) -> list[LoggedRequest]:
    return [
        request
        for request in rig.clusters[cluster].requests
        if request.verb == "patch" and request.user_agent.startswith("fleetbus")
    ]


def retries(cluster: str) -> float:
    labels = {"controller": "notes", "cluster": cluster, "outcome": "retried"}
    return REGISTRY.get_sample_value("fleetbus_reconciles_total", labels) or 0.0


@pytest.mark.slow
async def test_t5_labelled_objects_are_decorated_restored_let_go_and_never_lose_a_change(
    open_rig: Callable[..., Awaitable[Rig]],
) -> None:
    rig = await open_rig("a", "b")
    a, b = rig.clusters["a"], rig.clusters["b"]
    notes = fleetbus.Decorator("notes", resource=MAPS, selector="decorate=true")
    meanwhile: list[Callable[[], object]] = []

    @notes.decorate
    def _annotate(obj: Object, _cluster: str) -> Object:
        if obj["metadata"].get("annotations") is None and meanwhile:
            if len(meanwhile) == 1:
                meanwhile.pop()()
            else:
                meanwhile.pop()  # the look at the snapshot; the next one is live
        obj["metadata"]["annotations"] = (obj["metadata"].get("annotations") or {}) | {"x": "y"}
        return obj

    before = a.create(MAPS, {"metadata": {"name": "old"} | LABELLED}, "default")
    plain = b.create(MAPS, {"metadata": {"name": "plain"}}, "default")
    rig.start_reconciler(notes)
    for name in ("a", "b"):
        rig.start_watcher(name)
    b.create(MAPS, {"metadata": {"name": "new"} | LABELLED}, "default")
    await eventually(lambda: annotation(rig, "a", "old") == "y", WITHIN)
    await eventually(lambda: annotation(rig, "b", "new") == "y", WITHIN)
    assert a.get(MAPS, "default", "old") != before
    a.patch(MAPS, "default", "old", {"metadata": {"annotations": {"x": None}}})
    await eventually(lambda: annotation(rig, "a", "old") == "y", WITHIN)  # restored
    b.patch(MAPS, "default", "new", {"metadata": {"labels": None, "annotations": None}})
    await rig.quiet("notes")
    errors, sent = retries("a"), len(writes(rig, "a"))

    def change() -> None:
        a.patch(MAPS, "default", "raced", {"data": {"theirs": "too"}})

    meanwhile[:] = [change, change]
    a.create(MAPS, {"metadata": {"name": "raced"} | LABELLED}, "default")
    await eventually(lambda: annotation(rig, "a", "raced") == "y", WITHIN)  # after a conflict
    raced = a.get(MAPS, "default", "raced")
    assert raced is not None
    assert raced["data"] == {"theirs": "too"}
    assert not meanwhile
    refused, done = writes(rig, "a")[sent:]
    assert (refused.status, done.status) == (409, 200)
    assert done.time - refused.time < timedelta(seconds=1 if FULL else 10)
    assert retries("a") == errors
    await never(lambda: annotation(rig, "b", "new"), QUIET)  # without the label
    assert b.get(MAPS, "default", "plain") == plain
    assert len(writes(rig, "b")) == 1
