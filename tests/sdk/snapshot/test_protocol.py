"""The epoch protocol at random: nothing alive is ever deleted, and the snapshot ends as the truth.

Most histories run against the plain model, which test_snapshot_model proves equal to the store;
some run against the store itself, side by side, one answer per batch for all of them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.snapshot import ApplyResult, CompletedEpoch
from fleetbus.snapshot.audit import Audits, PageResult
from fleetbus_proto.events import (
    AuditPage,
    EpochEnd,
    Event,
    Heartbeat,
    Incarnation,
    ResourceStatus,
)
from fleetbus_proto.keys import SnapshotKeys
from support.full import FULL
from support.rows import each_row
from support.stores.epoch_protocol import Ask, Play, Run
from support.stores.snapshot import OBSERVED_AT, Snapshot, Source
from support.stores.snapshot_model import SnapshotModel

if TYPE_CHECKING:
    from redis.asyncio import Redis

SEEDS = 1_500
HISTORIES = SEEDS if FULL else 300
HISTORIES_ON_THE_STORE = 40 if FULL else 12
STEPS = 250
pytestmark = pytest.mark.longer


def answer(model: SnapshotModel, ask: Ask) -> Any:
    kind, message = ask
    if kind == "apply":
        count = len(model.completed)
        model.apply(message)
        return len(model.completed) > count
    if kind == "end":
        return model.end(message)[0]
    if kind == "sweep":
        rank = (int(message.epoch.resource_version), message.epoch.id)
        candidates = model.candidates(message.scope, message.incarnation.number, rank)
        return [(name, model.rows[name].uid) for name in sorted(candidates)]
    if kind == "audit":
        return model.audit(message)
    return model.evaluate("") if kind == "evaluate" else model.collect()


def play_on_model(run: Run, model: SnapshotModel) -> dict[str, tuple[str, int]]:
    play = run.play(STEPS)
    ask = next(play, None)
    while ask is not None:
        try:
            ask = play.send(answer(model, ask))
        except StopIteration:
            ask = None
    rows = model.rows.items()
    return {name: (row.uid, row.version) for name, row in rows if row.state == "L"}


@each_row("share", range(3))
def test_p2_to_p6_no_history_deletes_what_is_alive_or_ends_apart_from_the_truth(share: int):
    for seed in range(share * HISTORIES // 3, (share + 1) * HISTORIES // 3):
        run = Run(seed)
        assert play_on_model(run, SnapshotModel()) == run.truth.objects, f"seed {seed}"
        assert run.false_deletes == [], f"seed {seed}"


class RaisedTooHigh(SnapshotModel):
    """The floor rises above the version at which the audit was made."""

    def raise_floor(self, page: AuditPage) -> None:
        super().raise_floor(page)
        self.scopes[page.scope].floor += 5


class RaisedInDoubt(SnapshotModel):
    """The floor rises although something differs."""

    def differences(self, page: AuditPage) -> set[str]:
        return super().differences(page) & {"another"}


class RaisedByAnotherHistory(SnapshotModel):
    """The floor rises by audits from before or after a restore."""

    def is_comparable(self, page: AuditPage) -> bool:
        return page.scope in self.scopes

    def differences(self, page: AuditPage) -> set[str]:
        is_same = self.scopes[page.scope].incarnation == page.incarnation.number
        return super().differences(page) if is_same else set()


@pytest.mark.slow
@each_row("wrong", [RaisedTooHigh, RaisedInDoubt, RaisedByAnotherHistory])
def test_p15_a_floor_that_an_audit_raises_wrongly_is_caught(wrong: type[SnapshotModel]):
    for seed in range(SEEDS):
        run = Run(seed)
        if play_on_model(run, wrong()) != run.truth.objects:
            return
    pytest.fail("no history ends apart from the truth")


def test_w24_no_history_in_which_watches_stand_leaves_a_deletion_unseen():
    for seed in range(HISTORIES // 3):
        run = Run(seed, is_gapless=True)
        assert play_on_model(run, SnapshotModel()) == run.truth.objects, f"seed {seed}"
        assert run.unseen() == [], f"seed {seed}"


class OnTheStore:
    """A history whose next question is known."""

    def __init__(self, seed: int) -> None:
        self.run = Run(seed)
        self._play: Play = self.run.play(STEPS)
        self.ask: Ask | None = next(self._play, None)

    def reply(self, value: Any) -> None:
        try:
            self.ask = self._play.send(value)
        except StopIteration:
            self.ask = None


async def answer_others(snapshot: Snapshot, histories: list[OnTheStore]) -> None:
    for history in histories:
        while history.ask is not None and history.ask[0] != "apply":
            history.reply(await answer_on_store(snapshot, history))


async def answer_on_store(snapshot: Snapshot, history: OnTheStore) -> Any:
    assert history.ask is not None
    kind, message = history.ask
    if kind == "end":
        assert isinstance(message, EpochEnd)
        return (await snapshot.writer.end_epoch(message)).complete
    if kind == "sweep":
        completed = CompletedEpoch.of(message)
        candidates = snapshot.writer.sweeps.find_candidates(completed)
        pairs = sorted([(c.name, c.uid) async for c in candidates])
        await snapshot.writer.sweeps.finish(completed)
        return pairs
    if kind == "audit":
        return await Audits(snapshot.redis, SnapshotKeys()).add_page(message)
    if kind == "evaluate":
        return await evaluate(snapshot, history.run)
    return await snapshot.writer.removal.collect_tombstones("eu1", f"core/{history.run.resource}")


async def evaluate(snapshot: Snapshot, run: Run) -> None:
    """As the projector does once the low-water mark has passed the audit."""
    audits = Audits(snapshot.redis, SnapshotKeys())
    for incarnation in range(1, run.incarnation + 1):
        await audits.receive(beat(run, incarnation))
    async for audit in audits.due(timedelta()):
        decision = await audits.evaluate(audit)
        if decision is not None:
            await audits.end(audit, is_clean=not any(decision.counts.values()))


def beat(run: Run, incarnation: int) -> Heartbeat:
    """A watch of this resource that has passed every version there is."""
    status = ResourceStatus(
        group="core",
        version="v1",
        resource=run.resource,
        state="watching",
        resource_version=str(10**9),
    )
    return Heartbeat(
        cluster="eu1",
        replica="r",
        boot="b",
        incarnation=Incarnation(incarnation, "uid-of-kube-system"),
        connected=True,
        resources=[status],
        observed_at=OBSERVED_AT,
    )


async def apply_all(snapshot: Snapshot, histories: list[OnTheStore]) -> None:
    events: list[Event] = [h.ask[1] for h in histories if h.ask is not None]
    result: ApplyResult = await snapshot.writer.apply(events)
    completed = {epoch.resource for epoch in result.completed}
    for history in histories:
        history.reply(history.run.resource in completed)


async def finish_sweeps(snapshot: Snapshot, history: OnTheStore) -> None:
    for completed in await snapshot.writer.sweeps.find_pending("eu1"):
        if completed.resource == history.run.resource:
            await snapshot.writer.sweeps.finish(completed)


async def test_p2_to_p6_and_p15_the_store_itself_survives_the_same_histories(redis: Redis):
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    histories = [OnTheStore(seed) for seed in range(HISTORIES_ON_THE_STORE)]
    while playing := [history for history in histories if history.ask is not None]:
        await answer_others(snapshot, playing)
        if asking := [history for history in playing if history.ask is not None]:
            await apply_all(snapshot, asking)
    for history in histories:
        resource = f"core/{history.run.resource}"
        keys = [key async for key in snapshot.reader.keys("eu1", resource)]
        entries = [await snapshot.reader.get("eu1", resource, *key) for key in keys]
        live = {e.name: (e.uid, int(e.resource_version)) for e in entries if e is not None}
        assert live == history.run.truth.objects, f"seed of {history.run.resource}"
        await finish_sweeps(snapshot, history)
        run = history.run
        source = Source(resource=run.resource, incarnation=run.incarnation)
        page = source.audit(run.truth.version, run.audits + 1, run.truth.objects)
        taken = await Audits(redis, SnapshotKeys()).add_page(page)
        assert taken is PageResult.CLEAN, (
            f"P15: a finding where nothing is wrong, {history.run.resource}"
        )
        assert history.run.false_deletes == []
