"""When the fleet changes, what the watches of a controller match is reconciled again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleetbus.clusters.info import ClusterInfo
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.fleet_follow import follow_fleet
from support.eventually import eventually
from support.rigs.intake import DB_APP, EU1, PODS, WEB_APP, IntakeRig, Provider
from support.stores.snapshot import Source

OFTEN = timedelta(milliseconds=5)


class CountedFleet(Fleet):
    """Counts how often somebody looks at the clusters."""

    looks = 0

    def clusters(self, selector: str = "") -> list[ClusterInfo]:
        self.looks += 1
        return super().clusters(selector)


@pytest.fixture
def provider() -> Provider:
    return Provider()


async def woken(rig: IntakeRig, provider: Provider, **filters: Any) -> set[str]:
    """A controller, and the requests that a change of the fleet enqueues."""
    rig.controller.watch(PODS, **filters)
    rig.start()
    await rig.snapshot.set_up("eu1", "us1")
    marked = {"annotations": {"team": "x"}}
    await rig.snapshot.apply(
        EU1.added("web", 1, metadata=WEB_APP | marked),
        EU1.added("db", 2, metadata=DB_APP | marked),
        EU1.added("plain", 3, metadata=WEB_APP),
        EU1.added("dev", 4, metadata=WEB_APP | marked, namespace="dev"),
        EU1.added("large", 5, body=None, degraded="oversized"),
        Source(cluster="us1").added("far", 6, metadata=WEB_APP | marked),
    )
    fleet = CountedFleet(rig.clusters, rig.snapshot.reader)
    following = asyncio.create_task(
        follow_fleet(rig.controller, rig.queue, fleet, check_every=OFTEN)
    )
    try:
        await eventually(lambda: fleet.looks)  # it has seen the fleet as it is
        provider.regions.put_nowait({"eu1": "asia", "us1": "us"})

        async def is_enqueued() -> bool:
            assert not following.done(), following
            return bool((await rig.queue.stats()).depth)

        await eventually(is_enqueued)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return {
        f"{run.place.partition('/')[0]}/{run.place.rpartition('/')[2]}"
        for run in await rig.reconcile()
    }


def is_web(_old: Any, new: Any) -> bool:
    return new["metadata"]["labels"]["app"] == "web"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"selector": "app=web"}, {"eu1/web", "eu1/plain", "eu1/dev", "us1/far"}),
        ({"annotation_selector": "team"}, {"eu1/web", "eu1/db", "eu1/dev", "eu1/large", "us1/far"}),
        (
            {"predicate": is_web, "namespaces": ["prod"], "clusters": ["eu1"]},
            {"eu1/web", "eu1/plain", "eu1/large"},
        ),
    ],
)
async def test_t6_a_change_of_the_fleet_wakes_what_the_watches_match(
    rig: IntakeRig, provider: Provider, filters: dict[str, Any], expected: set[str]
) -> None:
    assert await woken(rig, provider, **filters) == expected


def of_region(cluster: ClusterInfo) -> bool:
    return cluster.labels["zone"] == "a"


def broken(_old: Any, new: Any) -> bool:
    return new["spec"]["replicas"] > 1


@pytest.mark.parametrize("filters", [{"clusters": of_region}, {"predicate": broken}])
async def test_a_function_of_the_author_that_raises_does_not_end_the_process(
    rig: IntakeRig, provider: Provider, filters: dict[str, Callable[..., bool]]
) -> None:
    with capture_logs() as logs:
        assert "eu1/web" in await woken(rig, provider, **filters)
    assert {line["event"] for line in logs} >= {"filter_failed"}
