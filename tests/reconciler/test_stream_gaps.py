"""Messages that left the stream before they were handled are requested again (B16, B17, P12)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.connection import NoAnswer
from fleetbus.bus.consume import Consumer
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import (
    consumer_info,
    ensure_consumer,
)
from fleetbus.bus.jetstream import (
    StreamLimits,
    call_jetstream,
    ensure_bucket,
    ensure_stream,
    stream_info,
)
from fleetbus.bus.reader_groups import BoundDurable, ReaderGroup, Selection, register
from fleetbus.snapshot.offsets.bus_state import BusStates
from fleetbus.snapshot.offsets.checkpoint import Loss, OffsetCheckpoint
from fleetbus.snapshot.offsets.checkpoint_store import Beside
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS, events_filter
from fleetbus_reconciler.projector.loss_recovery import update_stream_metrics
from fleetbus_reconciler.projector.reader_groups import ReaderGroups
from support.eventually import eventually
from support.rigs.projector import ProjectorRig, heartbeat
from support.stores.snapshot import Source

SOURCE = Source()
QUIET = "quiet-1"
FULL = 1024**2
"""The smallest stream that the settings allow, in bytes."""
LARGE = b'"' + b"x" * (FULL // 3) + b'"'


class Looking:
    """Offset checkpoints that are kept when the test says so, over a small stream."""

    def __init__(self, rig: ProjectorRig) -> None:
        self.rig = rig
        self.losses: list[Loss] = []
        self.fail: Exception | None = None
        self.restart()

    def restart(self) -> None:
        self.watch = self._checkpoint(
            PROJECTOR,
            BoundDurable(PROJECTOR),
            on_loss=self._note,
        )
        self.quiet = self._checkpoint("quiet", BoundDurable(QUIET))

    def _checkpoint(self, consumer: str, durable: BoundDurable, **options: Any) -> OffsetCheckpoint:
        async def handle(_deliveries: Sequence[Delivery]) -> None: ...

        return OffsetCheckpoint(
            bus=self.rig.bus,
            states=BusStates(self.rig.bus, on_stream_state=update_stream_metrics),
            filters=STREAM_SUBJECTS,
            redis=self.rig.redis,
            keys=SnapshotKeys(),
            beside=Beside.shard_of_snapshot(SnapshotKeys(), 0, consumer),
            consumer=consumer,
            durable=durable,
            handle=handle,
            ask_again_after=timedelta(),
            **options,
        )

    async def _note(self, loss: Loss, _reason: str) -> None:
        self.losses.append(loss)
        if self.fail is not None:
            raise self.fail

    async def check(self) -> int:
        """Look once; answers how often the projector was found to have missed something."""
        await self.quiet.check()
        await self.watch.check()
        assert set(self.losses) <= {Loss.MESSAGES}
        return len(self.losses)

    async def breaks(self, durable: str) -> int:
        return int(
            await self.rig.redis.hget(SnapshotKeys().offset_checkpoint(0, durable), "breaks") or 0
        )


@pytest.fixture
async def looking(rig: ProjectorRig) -> Looking:
    await rig.connections.writer.ensure_generation()
    await ensure_stream(rig.bus, StreamLimits(max_bytes=FULL))
    await ensure_bucket(rig.bus)
    await ensure_consumer(rig.bus, PROJECTOR, list(STREAM_SUBJECTS))
    looking = Looking(rig)
    await looking.watch.check()  # as before the first message is read
    return looking


async def fill(rig: ProjectorRig, first: int = 1) -> None:
    """Publish until nothing is left that was in the stream before."""
    for at in range(first, first + 4):
        await rig.publish(SOURCE.modified(f"filler-{at}", at, body=LARGE))


async def flow(looking: Looking) -> None:
    """Let messages come, be handled by the projector, and leave, under our eyes."""
    for at in range(1, 7):
        await looking.rig.publish(SOURCE.modified(f"filler-{at}", at, body=LARGE))
        await handle_all(looking.rig)
        await looking.check()


async def handle_all(rig: ProjectorRig) -> None:
    """Take and acknowledge what there is for the projector, as it would."""

    async def take(_deliveries: Sequence[Delivery]) -> None: ...

    consumer = Consumer(rig.bus, stream=STREAM, durable=PROJECTOR, handle=take)
    task = asyncio.create_task(consumer.run())
    try:
        await eventually(rig.is_through)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def add_quiet(rig: ProjectorRig) -> None:
    """A controller of services, of which there never are any."""
    services = Selection([events_filter(group="core", resource="services")])
    await register(rig.connections.kv, ReaderGroup({"quiet": services}))
    await serve(rig)


async def serve(rig: ProjectorRig) -> None:
    await ReaderGroups(rig.bus, rig.connections.kv, quiet=timedelta(0)).serve()


async def first_sequence(rig: ProjectorRig) -> int:
    info = await stream_info(rig.bus)
    assert info is not None
    return int(info["state"]["first_seq"])


async def test_b17_messages_that_left_unhandled_are_noticed_once(looking: Looking) -> None:
    rig = looking.rig
    await rig.publish(SOURCE.added("a", 1))
    assert await looking.check() == 0
    await fill(rig)
    assert await first_sequence(rig) > 2, "the stream was meant to drop the first message"
    assert await looking.check() == 1
    assert await looking.check() == 1
    await fill(rig, first=11)
    assert await looking.check() == 2


@pytest.mark.slow
async def test_b17_what_was_handled_before_it_left_is_no_gap(looking: Looking) -> None:
    rig = looking.rig
    await flow(looking)
    assert await first_sequence(rig) > 2
    looking.restart()
    assert await looking.check() == 0


async def test_b17_what_was_handled_and_left_between_two_looks_is_no_gap(looking: Looking) -> None:
    """A stream that is too small for what comes in between must not ask for ever more lists."""
    await looking.check()
    await fill(looking.rig)
    looking.watch.note([1, 2])
    looking.watch.note([2, 3, 4])
    assert await looking.check() == 0
    await fill(looking.rig, first=11)
    looking.watch.note([5, 8])
    assert await looking.check() == 1


async def test_b17_what_was_handled_in_the_order_of_its_cluster_is_no_gap(looking: Looking) -> None:
    """The list of one cluster waits here, while the changes of others are handled (rule P9)."""
    await looking.check()
    await fill(looking.rig)
    looking.watch.note([4, 3])
    looking.watch.note([1, 2])
    assert await looking.check() == 0
    await fill(looking.rig, first=11)
    looking.watch.note([8, 7, 5])
    assert await looking.check() == 1


async def test_b17_a_quiet_filtered_consumer_is_no_alarm(looking: Looking) -> None:
    rig = looking.rig
    await add_quiet(rig)
    await flow(looking)
    quiet = await consumer_info(rig.bus, QUIET)
    assert quiet is not None
    assert quiet["ack_floor"]["stream_seq"] + 1 < await first_sequence(rig)
    assert await looking.breaks(QUIET) == 0


async def test_b17_only_the_controller_that_missed_something_is_reported(looking: Looking) -> None:
    rig = looking.rig
    await add_quiet(rig)
    await rig.publish(Source(resource="services").added("missed", 1))
    await flow(looking)
    assert (await looking.breaks(QUIET), await looking.breaks(PROJECTOR)) == (1, 0)


async def test_b17_what_left_while_nobody_looked_is_noticed_with_nothing_left_to_do(
    looking: Looking,
) -> None:
    """The server says that nothing is pending: what it dropped was all there was."""
    rig = looking.rig
    await add_quiet(rig)
    services = Source(resource="services")
    await looking.check()
    await rig.publish(services.added("missed", 1))
    await fill(rig)
    quiet = await consumer_info(rig.bus, QUIET)
    assert quiet is not None
    assert (quiet["num_pending"], quiet["num_ack_pending"]) == (0, 0)
    looking.restart()
    await looking.check()
    assert await looking.breaks(QUIET) == 1


async def test_b17_a_gap_stands_until_the_epochs_are_asked_for(looking: Looking) -> None:
    rig = looking.rig
    await rig.publish(SOURCE.added("a", 1))
    await looking.check()
    await fill(rig)
    looking.fail = NoAnswer("no answer")
    with pytest.raises(NoAnswer):
        await looking.check()
    assert await looking.breaks(PROJECTOR) == 0
    looking.fail = None
    assert await looking.check() == 2
    assert await looking.breaks(PROJECTOR) == 1
    assert await looking.check() == 2


@pytest.mark.slow
async def test_b17_another_stream_is_no_gap_and_a_break_for_every_consumer(
    looking: Looking,
) -> None:
    rig = looking.rig
    await add_quiet(rig)
    await flow(looking)
    await call_jetstream(rig.bus, f"STREAM.DELETE.{STREAM}")
    await ensure_stream(rig.bus, StreamLimits(max_bytes=FULL))
    await ensure_consumer(rig.bus, PROJECTOR, list(STREAM_SUBJECTS))
    await serve(rig)
    await rig.publish(SOURCE.added("a", 1))
    assert await looking.check() == 0
    assert await looking.breaks(PROJECTOR) == await looking.breaks(QUIET) == 1
    assert await looking.check() == 0
    assert await looking.breaks(PROJECTOR) == 1


@pytest.mark.slow
async def test_b17_what_a_process_still_held_of_the_stream_before_counts_for_nothing(
    looking: Looking,
) -> None:
    rig = looking.rig
    await flow(looking)
    await call_jetstream(rig.bus, f"STREAM.DELETE.{STREAM}")
    await ensure_stream(rig.bus, StreamLimits(max_bytes=FULL))
    await ensure_consumer(rig.bus, PROJECTOR, list(STREAM_SUBJECTS))
    assert await looking.check() == 0
    looking.watch.note([4, 5])
    assert await looking.check() == 0
    await rig.publish(*(SOURCE.modified("a", version) for version in (11, 12, 13)))
    await handle_all(rig)
    for _ in range(2):
        assert await looking.check() == 0
    low = await rig.redis.hget(SnapshotKeys().offset_checkpoint(0, PROJECTOR), "low")
    assert int(low or 0) == 3
    assert await looking.breaks(PROJECTOR) == 1


async def test_b17_a_server_that_forgot_what_was_acknowledged_is_a_break_and_no_lost_stream(
    looking: Looking,
) -> None:
    """A killed server does, of the last moment."""
    await flow(looking)
    await call_jetstream(looking.rig.bus, f"CONSUMER.DELETE.{STREAM}.{PROJECTOR}")
    await ensure_consumer(looking.rig.bus, PROJECTOR, list(STREAM_SUBJECTS))
    with capture_logs() as logs:
        assert await looking.check() == 0
    assert await looking.breaks(PROJECTOR) == 1
    events = [(line["event"], line["log_level"]) for line in logs]
    assert events == [("acknowledgements_lost", "warning")]


async def test_b17_p12_a_projector_that_was_away_too_long_asks_for_everything(
    rig: ProjectorRig,
) -> None:
    rig.settings["stream_max_bytes"] = FULL
    await rig.started("eu1", "us1")
    for cluster in ("eu1", "us1"):
        await rig.publish(heartbeat(cluster))
        await rig.publish_epoch(Source(cluster=cluster, rank=(5, 5)), a=4)
        await rig.synced(cluster)
    await eventually(lambda: rig.redis.hget(SnapshotKeys().offset_checkpoint(0, PROJECTOR), "low"))
    await rig.stop()
    await rig.publish(SOURCE.modified("a", 6))
    await fill(rig, first=7)
    rig.start()
    for cluster in ("eu1", "us1"):
        await rig.resync_requested("left the stream", cluster)


async def test_b16_subjects_and_bytes_of_the_stream_are_metrics(looking: Looking) -> None:
    rig = looking.rig
    for turn in range(3):  # names that come and go are subjects, also of what is deleted
        await rig.publish(
            SOURCE.added(f"o{turn}", 2 * turn + 1), SOURCE.deleted(f"o{turn}", 2 * turn + 2)
        )
    await looking.check()
    info = await stream_info(rig.bus)
    assert info is not None
    assert REGISTRY.get_sample_value("fleetbus_stream_subjects") == 6
    assert REGISTRY.get_sample_value("fleetbus_stream_messages") == 6
    assert REGISTRY.get_sample_value("fleetbus_stream_bytes") == info["state"]["bytes"] > 0
