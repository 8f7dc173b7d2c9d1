"""Findings of audits are logged, and their resources listed again (rule P15)."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from fleetbus.snapshot.records import ResourceState
from fleetbus_proto.events import AuditPage, Incarnation, Rank
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_reconciler.projector.audit_evaluator import AUDITS, FINDINGS
from support.eventually import eventually
from support.rigs.projector import LATER, ProjectorRig, heartbeat
from support.stores.snapshot import OBSERVED_AT, Source

FIRST = Source(rank=(100, LATER))


def page(version: int, audit: int = 1, **objects: int) -> AuditPage:
    """A whole audit, in one page."""
    return AuditPage(
        cluster="eu1",
        incarnation=Incarnation(1, "uid-of-kube-system"),
        group="core",
        version="v1",
        resource="pods",
        epoch=Rank(str(version), audit),
        page=0,
        last=True,
        items=[("prod", name, f"uid-{name}", str(held)) for name, held in sorted(objects.items())],
        observed_at=OBSERVED_AT,
    )


KINDS = ("missing", "ghost", "stale")


def findings() -> list[float | None]:
    labels = {"cluster": "eu1", "resource": "core/pods"}
    name = "fleetbus_audit_findings_total"
    return [REGISTRY.get_sample_value(name, {**labels, "kind": kind}) for kind in KINDS]


def audits() -> float:
    return REGISTRY.get_sample_value("fleetbus_audits_total", {"cluster": "eu1"}) or 0.0


@pytest.fixture(autouse=True)
def from_zero() -> None:
    for family in (AUDITS, FINDINGS):
        family.clear()


async def filled(rig: ProjectorRig, **objects: int) -> None:
    await rig.started("eu1")
    await rig.publish_epoch(FIRST, **objects)
    await rig.synced(epoch=f"100 {LATER}")
    await rig.publish(heartbeat())


async def test_p15_each_finding_is_counted_and_logged_and_its_resource_listed_again(
    rig: ProjectorRig,
):
    await filled(rig, web=50, db=60)
    assert await rig.resync_request() is None
    await rig.publish(page(200, web=55, new=120), heartbeat(resource_version="200"))
    request = await rig.resync_requested("audit found 1 missing, 1 ghost, 1 stale")
    await eventually(lambda: audits() == 1)
    assert request.min_epoch > FIRST.rank[1]
    assert findings() == [1, 1, 1]
    assert await rig.state() is ResourceState.DEGRADED
    assert rig.deleted == []
    await rig.publish_epoch(Source(rank=(201, request.min_epoch)), web=55, new=120)
    await rig.synced(epoch=f"201 {request.min_epoch}")
    await eventually(lambda: rig.deleted)
    assert [event.name for event in rig.deleted] == ["db"]


async def test_p15_no_finding_while_events_are_on_their_way(rig: ProjectorRig):
    await filled(rig, web=50)
    await rig.publish(page(200, web=50, new=120), heartbeat(resource_version="119"))
    await rig.publish(FIRST.added("new", 120), heartbeat(resource_version="200"))
    await eventually(lambda: audits() == 1)
    assert findings() == [0, 0, 0]
    assert await rig.resync_request() is None
    assert await rig.state() is ResourceState.SYNCED


async def test_p15_an_audit_that_agrees_says_nothing(rig: ProjectorRig):
    await filled(rig, web=50)
    await rig.publish(page(200, web=50))
    await eventually(lambda: audits() == 1)
    assert await rig.resync_request() is None
    assert not await rig.redis.exists(SnapshotKeys().audits("eu1"))


async def test_w12_p15_what_no_list_can_mend_is_of_another_history(rig: ProjectorRig):
    await filled(rig, web=50)
    await rig.publish(page(200, 1, web=40), heartbeat(resource_version="200"))
    first = await rig.resync_requested("audit found 1 stale")
    await rig.publish_epoch(Source(rank=(201, first.min_epoch)), web=40)
    await rig.synced(epoch=f"201 {first.min_epoch}")
    await rig.publish(page(210, 2, web=40), heartbeat(resource_version="210"))
    second = await rig.resync_requested("audit found 1 stale", after=first.min_epoch)
    assert (first.incarnation, second.incarnation) == (1, 2)
    await rig.publish_epoch(Source(incarnation=3, rank=(220, second.min_epoch + 1)), web=40)
    await eventually(lambda: has_version(rig, "40"))


async def has_version(rig: ProjectorRig, version: str) -> bool:
    return await rig.snapshot.version("web") == version


async def test_p15_an_audit_outlives_the_projector(rig: ProjectorRig):
    await filled(rig, web=50)
    await rig.publish(page(200), heartbeat())
    await eventually(lambda: rig.redis.exists(SnapshotKeys().audits("eu1")))
    await rig.stop()
    await rig.publish(heartbeat(resource_version="200"))
    rig.start()
    await rig.resync_requested("audit found 1 ghost")
