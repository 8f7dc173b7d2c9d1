"""Audits of the snapshot: findings, and none without certainty (rules P15, W8)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.snapshot import ApplyOutcome
from fleetbus.snapshot.audit import Audit, AuditDecision, Audits, Finding, FindingKind, PageResult
from fleetbus.store.connection import StoreEmpty
from fleetbus_proto.events import AuditPage, Heartbeat, Incarnation, Rank, ResourceStatus
from fleetbus_proto.keys import SnapshotKeys
from support.stores.snapshot import OBSERVED_AT, PODS, Snapshot, Source, full_store

if TYPE_CHECKING:
    from redis.asyncio import Redis

pytestmark = pytest.mark.stores("valkey", "redis")

NOW = timedelta()
FIRST = Source(rank=(100, 1))
CLEAN = AuditDecision({FindingKind.MISSING: 0, FindingKind.GHOST: 0, FindingKind.STALE: 0}, [], 0)


class Rig:
    """A snapshot, and the audits of its pods."""

    def __init__(self, redis: Redis) -> None:
        self.snapshot = Snapshot(redis)
        self.redis = redis
        self.audits = Audits(redis, SnapshotKeys())

    async def take(self, version: int = 200, **fields: Any) -> bool:
        """Whether nothing was suspicious in the whole of it."""
        return await self.audits.add_page(page(version, **fields)) is PageResult.CLEAN

    async def pass_mark(self, version: int = 200, **fields: Any) -> None:
        await self.audits.receive(beat(version, **fields))

    async def due(self) -> list[Audit]:
        return [audit async for audit in self.audits.due(NOW)]

    async def decision(self, version: int = 200) -> AuditDecision | None:
        """After the mark has passed; the audit must be there."""
        await self.pass_mark(version)
        (audit,) = await self.due()
        return await self.audits.evaluate(audit)

    async def findings(self, version: int = 200) -> set[tuple[str, str]]:
        decision = await self.decision(version)
        assert decision is not None
        assert sum(decision.counts.values()) == len(decision.examples)
        return {(f.kind.value, f.key) for f in decision.examples}

    async def audit_keys(self) -> list[str]:
        return [key for key in await self.snapshot.all_keys() if "audit" in key]


def page(version: int, *, number: int = 0, last: bool = True, **fields: Any) -> AuditPage:
    objects: dict[str, int | tuple[int, str]] = fields.pop("objects", {})
    items: list[tuple[str, str, str, str]] = []
    for name, listed in sorted(objects.items(), key=lambda item: item[0].encode()):
        held, uid = listed if isinstance(listed, tuple) else (listed, f"uid-{name}")
        items.append(("prod", name, uid, str(held)))
    return AuditPage(
        cluster=fields.pop("cluster", "eu1"),
        incarnation=Incarnation(fields.pop("incarnation", 1), "uid-of-kube-system"),
        group="core",
        version="v1",
        resource="pods",
        epoch=Rank(str(version), fields.pop("id", 7)),
        page=number,
        last=last,
        items=items,
        observed_at=OBSERVED_AT,
        **fields,
    )


def beat(
    version: int, *, state: str = "watching", incarnation: int = 1, scope: str = ""
) -> Heartbeat:
    return Heartbeat(
        cluster="eu1",
        replica="r",
        boot="b",
        incarnation=Incarnation(incarnation, "uid-of-kube-system"),
        connected=True,
        resources=[
            ResourceStatus(
                group="core",
                version="v1",
                resource="pods",
                scope=scope,
                state=state,
                resource_version=str(version),
            )
        ],
        observed_at=OBSERVED_AT,
    )


@pytest.fixture
async def rig(redis: Redis) -> Rig:
    """Pods web (50) and db (60), listed at 100."""
    audit_rig = Rig(redis)
    await audit_rig.snapshot.set_up("eu1", "us1")
    await audit_rig.snapshot.run_epoch(FIRST, web=50, db=60)
    made_of = await audit_rig.snapshot.writer.sweeps.find_pending("eu1")
    await audit_rig.snapshot.writer.sweeps.finish(made_of[0])
    return audit_rig


async def test_p15_an_audit_that_agrees_is_clean_at_once_and_leaves_nothing(rig: Rig):
    assert await rig.take(objects={"db": 60, "web": 50})
    assert await rig.audit_keys() == []


async def test_p15_a_clean_audit_raises_the_floor_and_lets_tombstones_go(rig: Rig):
    await rig.snapshot.apply(FIRST.deleted("web", 150), FIRST.deleted("db", 250))
    assert await rig.take(objects={})
    assert await rig.snapshot.writer.removal.collect_tombstones("eu1", PODS) == 1
    late = [FIRST.modified("web", 120), FIRST.added("web", 140), FIRST.added("unknown", 200)]
    assert await rig.snapshot.apply(*late) == ["stale"] * 3
    assert await rig.snapshot.apply(FIRST.added("web", 201)) == ["applied"]


async def test_p15_an_audit_found_clean_later_raises_the_floor_then(rig: Rig):
    assert not await rig.take(objects={"db": 60})
    await rig.snapshot.apply(FIRST.deleted("web", 150))
    assert await rig.snapshot.writer.removal.collect_tombstones("eu1", PODS) == 0
    assert await rig.decision() == CLEAN
    (audit,) = await rig.due()
    assert await rig.audits.end(audit, is_clean=True)
    assert await rig.snapshot.writer.removal.collect_tombstones("eu1", PODS) == 1


@pytest.mark.parametrize("objects", [{"db": 60, "web": 50, "new": 70}, {"db": 60}])
async def test_p15_an_audit_in_doubt_raises_nothing(rig: Rig, objects: dict[str, int]):
    await rig.snapshot.apply(FIRST.added("gone", 110), FIRST.deleted("gone", 120))
    assert not await rig.take(objects=objects)
    assert await rig.snapshot.writer.removal.collect_tombstones("eu1", PODS) == 0
    await rig.pass_mark()
    (audit,) = await rig.due()
    assert await rig.audits.end(audit, is_clean=False)
    assert await rig.snapshot.writer.removal.collect_tombstones("eu1", PODS) == 0


async def test_p15_more_suspects_than_are_kept_are_never_clean(
    rig: Rig,
):
    rig.audits = Audits(rig.redis, SnapshotKeys(), most_suspects=2)
    await rig.snapshot.apply(FIRST.added("gone", 110), FIRST.deleted("gone", 120))
    await rig.take(objects={"a": 150, "b": 151, "c": 152})
    await rig.snapshot.apply(FIRST.added("a", 150), FIRST.added("b", 151))
    await rig.pass_mark()
    (audit,) = await rig.due()
    assert await rig.audits.end(audit, is_clean=True)
    assert await rig.snapshot.writer.removal.collect_tombstones("eu1", PODS) == 0
    assert await rig.snapshot.apply(FIRST.added("c", 152)) == ["applied"]


async def test_p15_a_full_store_is_audited_as_long_as_nothing_differs(rig: Rig, redis: Redis):
    await rig.snapshot.apply(FIRST.deleted("web", 150))
    async with full_store(redis):
        assert not await rig.take(objects={"new": 150})
        assert await rig.audit_keys() == []
        assert await rig.take(objects={"db": 60})
        assert await rig.snapshot.writer.removal.collect_tombstones("eu1", PODS) == 1


@pytest.mark.parametrize(
    ("listed", "kind", "key"),
    [
        ({"db": 60, "web": 50, "new": 70}, "missing", "prod/new"),
        ({"db": 60}, "ghost", "prod/web"),
        ({"db": 60, "web": 55}, "stale", "prod/web"),
        ({"db": 60, "web": 40}, "stale", "prod/web"),
        ({"db": 60, "web": (50, "uid-of-another")}, "stale", "prod/web"),
    ],
    ids=["missing", "ghost", "behind", "ahead", "another-of-that-name"],
)
async def test_p15_each_difference_is_found_by_its_kind(
    rig: Rig, listed: dict[str, Any], kind: str, key: str
):
    assert not await rig.take(objects=listed)
    assert await rig.findings() == {(kind, key)}


async def test_p15_what_a_wrong_deletion_took_away_is_missing(rig: Rig):
    await rig.snapshot.apply(FIRST.deleted("web", 120))
    await rig.take(objects={"db": 60, "web": 50})
    assert await rig.findings() == {("missing", "prod/web")}


async def test_p15_only_what_is_not_newer_than_the_server_can_be_mended_by_a_list(rig: Rig):
    await rig.take(objects={"db": 65, "web": 40})
    decision = await rig.decision()
    assert decision is not None
    assert (decision.counts[FindingKind.STALE], decision.ahead) == (2, 1)
    assert set(decision.examples) == {
        Finding(FindingKind.STALE, "prod/db", "65", "60"),
        Finding(FindingKind.STALE, "prod/web", "40", "50"),
    }


async def test_p15_what_was_on_its_way_is_no_finding(rig: Rig):
    await rig.take(objects={"new": 150, "web": 160})
    source = FIRST
    await rig.snapshot.apply(
        source.added("new", 150), source.modified("web", 160), source.deleted("db", 170)
    )
    assert await rig.decision() == CLEAN


async def test_p15_what_has_changed_since_the_list_is_no_finding(rig: Rig):
    await rig.snapshot.apply(
        FIRST.added("new", 210), FIRST.modified("web", 220), FIRST.deleted("db", 230)
    )
    assert await rig.take(objects={"db": 60, "web": 50})


async def test_p15_nothing_is_due_before_the_mark_has_passed_the_list(rig: Rig):
    await rig.take(objects={})
    for heartbeat in (
        beat(199),
        beat(300, state="listing"),
        beat(300, incarnation=2),
        beat(300, scope="s"),
    ):
        await rig.audits.receive(heartbeat)
    assert await rig.due() == []
    await rig.pass_mark(200)
    assert [audit.version for audit in await rig.due()] == ["200"]
    assert [audit async for audit in rig.audits.due(timedelta(hours=1))] == []


async def test_w8_p15_an_audit_without_all_its_pages_is_never_evaluated(rig: Rig):
    await rig.take(objects={"a": 1}, last=False)
    await rig.take(objects={}, number=2, after=("prod", "b"))
    assert await rig.decision() is None
    await rig.take(objects={"b": 1}, number=1, last=False, after=("prod", "a"))
    assert await rig.findings() == {
        ("missing", "prod/a"),
        ("missing", "prod/b"),
        ("ghost", "prod/db"),
        ("ghost", "prod/web"),
    }


async def test_p15_pages_may_come_again_and_in_any_order(rig: Rig):
    first: dict[str, Any] = {"objects": {"cache": 1}, "last": False}
    last_page: dict[str, Any] = {"objects": {"web": 50}, "number": 1, "after": ("prod", "cache")}
    for fields in (last_page, first, first, last_page):
        await rig.take(**fields)
    assert await rig.findings() == {("missing", "prod/cache"), ("ghost", "prod/db")}


async def test_p15_a_page_says_nothing_of_the_keys_of_others(rig: Rig):
    await rig.take(objects={"a": 1}, last=False)
    await rig.take(objects={"x": 1}, number=1, after=("prod", "wea"))
    assert await rig.findings() == {
        ("missing", "prod/a"),
        ("missing", "prod/x"),
        ("ghost", "prod/web"),
    }


async def test_p15_a_newer_epoch_has_the_last_word(rig: Rig):
    await rig.take(objects={})
    await rig.snapshot.run_epoch(Source(rank=(201, 3)), web=50, db=60)
    assert await rig.decision() == CLEAN
    assert not await rig.take(150, objects={}, id=8)
    assert await rig.snapshot.redis.hget(SnapshotKeys().audit("eu1", PODS, ""), "version") == b"200"


async def test_p15_while_deletions_of_an_epoch_are_not_published_nothing_is_evaluated(rig: Rig):
    state = await rig.snapshot.run_epoch(Source(rank=(150, 2)), web=50)
    await rig.take(objects={"web": 50})
    assert await rig.decision() is None
    await rig.snapshot.writer.sweeps.finish(state.epoch)
    assert await rig.findings() == {("ghost", "prod/db")}


async def test_p15_another_history_is_not_compared(rig: Rig):
    for incarnation in (0, 2):
        other = page(200, incarnation=incarnation)
        assert await rig.audits.add_page(other) is PageResult.IGNORED
    assert await rig.audit_keys() == []


async def test_p15_without_a_complete_list_nothing_is_compared(redis: Redis):
    rig = Rig(redis)
    await rig.snapshot.set_up("eu1")
    assert await rig.audits.add_page(page(200, objects={"a": 1})) is PageResult.IGNORED
    assert await rig.audit_keys() == []


async def test_p1_p15_of_a_cluster_that_left_nothing_is_kept(rig: Rig):
    await rig.take(objects={})
    await rig.snapshot.writer.removal.drop_cluster("eu1")
    assert await rig.audits.add_page(page(200, objects={"a": 1}, id=8)) is PageResult.IGNORED
    assert [key for key in await rig.audit_keys() if key != SnapshotKeys().audits_due(0)] == []
    assert await rig.due() == []


async def test_p13_p15_an_emptied_store_takes_no_audit(rig: Rig):
    await rig.redis.flushall()
    with pytest.raises(StoreEmpty):
        await rig.take(objects={"a": 1})


async def test_p15_a_newer_audit_replaces_one_that_is_not_about_to_be_evaluated(rig: Rig):
    await rig.take(objects={})
    await rig.take(210, objects={"db": 60}, id=8)
    await rig.pass_mark(210)
    await rig.take(220, objects={}, id=9)
    (audit,) = await rig.due()
    assert audit.version == "210"
    decision = await rig.audits.evaluate(audit)
    assert decision is not None
    assert [f.key for f in decision.examples] == ["prod/web"]
    assert await rig.audits.end(audit, is_clean=False)
    assert not await rig.audits.end(audit, is_clean=False)
    assert await rig.audit_keys() == []


async def test_b8_p15_hostile_names_are_compared_like_others(rig: Rig):
    names = ["*", ">", "a b", "page:0", "last", "tab\tnl\n", "é☃", "x" * 100_000, "?", "%s"]
    await rig.take(objects=dict.fromkeys(names, 7))
    decision = await rig.decision()
    assert decision is not None
    assert decision.counts == {
        FindingKind.MISSING: len(names),
        FindingKind.GHOST: 2,
        FindingKind.STALE: 0,
    }
    (audit,) = await rig.due()
    await rig.audits.end(audit, is_clean=False)
    outcomes = await rig.snapshot.apply(*(FIRST.added(name, 150, uid="u") for name in names))
    assert set(outcomes) == {ApplyOutcome.APPLIED}
    await rig.take(210, objects=dict.fromkeys(names, (150, "u")), id=8)
    assert await rig.findings(210) == {("ghost", "prod/db"), ("ghost", "prod/web")}


async def test_p15_the_snapshot_of_another_scope_is_none_of_its_business(rig: Rig):
    other = Source(rank=(100, 1), scope="ns")
    state = await rig.snapshot.run_epoch(other, cache=70)
    await rig.snapshot.writer.sweeps.finish(state.epoch)
    assert await rig.take(objects={"db": 60, "web": 50})
    assert not await rig.take(objects={}, scope="ns", id=8)
    await rig.pass_mark(200, scope="ns")
    (audit,) = await rig.due()
    decision = await rig.audits.evaluate(audit)
    assert decision is not None
    assert [f.key for f in decision.examples] == ["prod/cache"]


async def test_p15_of_countless_differences_some_are_kept(
    rig: Rig,
):
    rig.audits = Audits(rig.redis, SnapshotKeys(), most_suspects=30)
    await rig.take(objects={f"n{i:03}": 1 for i in range(25)}, last=False)
    await rig.take(objects={f"o{i:03}": 1 for i in range(25)}, number=1, after=("prod", "n024"))
    decision = await rig.decision()
    assert decision is not None
    assert sum(decision.counts.values()) == 30
    assert len(decision.examples) == 5
