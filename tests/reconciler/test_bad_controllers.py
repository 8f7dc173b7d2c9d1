"""Mistakes of authors are logged, and affect no other controller."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, cast

import pytest
import structlog
from structlog.testing import capture_logs

import fleetbus
from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.controller import Controller
from fleetbus.worker.watch_check import absent_clusters, unwatched_resources
from support.eventually import eventually
from support.rigs.fleet import Recorder, Rig

OpenRig = Callable[..., Awaitable[Rig]]
MAPS = "v1/configmaps"
WITHIN = timedelta(seconds=30)


def controller(name: str, work: Callable[[], Awaitable[Any]], **options: Any) -> Controller:
    built = Controller(name, **options)
    built.watch(MAPS, namespaces=["default"])

    @built.reconcile
    async def reconcile(*_: object) -> fleetbus.Result | None:
        return cast("fleetbus.Result | None", await work())

    return built


async def never() -> None:
    await asyncio.Event().wait()


async def block() -> None:
    time.sleep(0.3)  # noqa: ASYNC251 -- the mistake


async def fail() -> None:
    raise ValueError("seven")


async def return_text() -> str:
    return "done"


async def leave() -> None:
    async def inside() -> None:
        sys.exit(3)

    await asyncio.create_task(inside())


async def give_up() -> None:
    raise fleetbus.TerminalError("no such thing")


def bad_controllers() -> list[Controller]:
    misspelt = controller("misspelt", fail)
    misspelt.watch("v1/configmapps")
    misspelt.watch("v1/pods", clusters=["a", "nowhere"])
    return [
        misspelt,
        controller("failing", fail),
        controller("hanging", never, timeout=timedelta(milliseconds=300)),
        controller("blocking", block),
        controller("babbling", return_text),
        controller("resigned", give_up),
        controller("leaving", leave),
    ]


@pytest.mark.slow
async def test_r8_mistakes_of_some_controllers_are_logged_and_the_others_lose_nothing(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.worker.loop_guard.PATIENCE", timedelta(milliseconds=100))
    rig = await open_rig("a", resources=(MAPS,))
    rig.clusters["a"].create(MAPS, {"metadata": {"name": "x"}}, "default")
    good = Controller("good")
    good.watch(MAPS, namespaces=["default"])
    recorder = Recorder(good, MAPS)
    with capture_logs([structlog.contextvars.merge_contextvars]) as logs:
        rig.start_reconciler(*bad_controllers(), good)
        rig.start_watcher("a")
        await eventually(lambda: recorder.of("a", "default", "x"), WITHIN)

        def logged(event: str, **fields: Any) -> list[Mapping[str, Any]]:
            lines = [line for line in logs if line["event"] == event]
            return [line for line in lines if fields.items() <= line.items()]

        for event, name in (
            ("reconcile_failed", "failing"),
            ("reconcile_timed_out", "hanging"),
            ("invalid_reconcile_result", "babbling"),
            ("reconcile_gave_up", "resigned"),
            ("task_exited", "leaving"),
            ("resource_is_watched_in_no_cluster", "misspelt"),
            ("watch_matches_no_cluster", "misspelt"),
        ):
            await eventually(lambda e=event, n=name: logged(e, controller=n), WITHIN)

        def blocks() -> list[Mapping[str, Any]]:  # an import of a test blocks the loop, too
            found = logged("event_loop_blocked")
            return [line for line in found if "time.sleep(0.3)" in line["stack"]]

        (blocked, *_) = await eventually(blocks, WITHIN)
        assert blocked["task"] == "reconcile cluster://a/default/x"
        assert blocked["stack"].startswith(f'  File "{__file__}"')  # and not with what hosts it
        unwatched = logged("resource_is_watched_in_no_cluster")
        near = {
            line["resource"]: (line.get("did_you_mean"), line.get("hint")) for line in unwatched
        }
        left_out = "it may be misspelt, or left out by the settings of the watcher"
        assert near == {"v1/configmapps": (MAPS, None), "v1/pods": (None, left_out)}
        # A fleet knows more names than a line can hold.
        assert not any("watched" in line for line in unwatched)
        (absent,) = logged("watch_matches_no_cluster")
        assert (absent["clusters"], absent["fleet"]) == ("nowhere", ["a"])
        # They still fail; a change is seen all the same, and by all of them.
        failures = len(logged("reconcile_failed", controller="failing"))
        rig.clusters["a"].patch(MAPS, "default", "x", {"data": {"k": "1"}})
        await eventually(lambda: (recorder.runs[-1].object or {}).get("data") == {"k": "1"}, WITHIN)
        await eventually(
            lambda: len(logged("reconcile_failed", controller="failing")) > failures, WITHIN
        )


def test_what_no_cluster_of_the_fleet_matches_is_named_once() -> None:
    named_controller = Controller("found")
    named_controller.watch(MAPS, clusters=["eu1", "us1"])
    named_controller.watch("v1/pods", clusters=["us1", "prod-*"])
    named_controller.watch("apps/v1/deployments", clusters="region=mars")
    named_controller.watch("v1/secrets", clusters=lambda info: info.labels["there"] == "is none")
    fleet = [ClusterInfo(name="eu1", labels={"region": "eu"}, provider="test", config=None)]
    assert absent_clusters(named_controller, fleet) == ["prod-*", "us1", "with region=mars"]
    named = Controller("named")
    named.watch(MAPS, clusters="eu1")
    (message,) = absent_clusters(named, fleet)
    assert message == "with the label eu1; for the cluster of that name write clusters=['eu1']"
    unwatched = unwatched_resources(named_controller, {"core/configmaps", "core/pods"})
    assert [str(resource) for resource in unwatched] == ["apps/v1/deployments", "v1/secrets"]
