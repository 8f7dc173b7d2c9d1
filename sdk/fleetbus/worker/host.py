"""Hosts controllers in a process: bus → snapshot → queues → workers.

One reader reads the bus for all of them. Each controller has what only it uses: its router, record
and queue, its workers, and the checkpoint beside its queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fleetbus.bus.durable_names import RESERVED_NAMES
from fleetbus.bus.durables import filters_for
from fleetbus.bus.reader_groups import BoundDurable, ReaderGroup, Selection
from fleetbus.controller.controller import Controller
from fleetbus.controller.fingerprint import selection_digest
from fleetbus.errors import ConfigError
from fleetbus.process.health import Health
from fleetbus.snapshot.applied import AppliedEvents
from fleetbus.snapshot.applied_here import AppliedHere
from fleetbus.snapshot.offsets.bus_state import BusStates
from fleetbus.worker.connections import Connections
from fleetbus.worker.hosted import Hosted
from fleetbus.worker.loop_guard import contain_exits, report_blocked_loop
from fleetbus.worker.reader import Reader
from fleetbus.workqueue.queue import QueuePolicy
from fleetbus.workqueue.stored_format import wait_for_format


def check_controllers(controllers: Sequence[Controller]) -> None:
    """Check that controllers are complete and their names differ.

    Raises:
        ConfigError: one is not.
    """
    found: dict[str, Controller] = {}
    for controller in controllers:
        name, place = controller.name, controller.place
        if name in RESERVED_NAMES:
            raise ConfigError(f"the controller name {name!r} is reserved, see {place}")
        if other := found.get(name):
            raise ConfigError(f"two controllers are named {name}: {other.place} and {place}")
        found[name] = controller
        controller.function()


async def run_controllers(
    controllers: Sequence[Controller],
    connections: Connections,
    health: Health,
    *,
    policy: QueuePolicy | None = None,
    applied: AppliedHere | None = None,
) -> None:
    """Run controllers until cancelled.

    Args:
        controllers: which ones.
        connections: bus, store and fleet.
        health: shows whether they are bound, and work.
        policy: of their queues.
        applied: that of the projector, if it runs in this process too.

    Raises:
        ConfigError: a controller is incomplete.
        BaseExceptionGroup: NATS refuses us for good (rule B13), or a loop failed.
    """
    check_controllers(controllers)
    if not controllers:
        return
    await wait_for_format(connections.redis, (each.name for each in controllers), health)
    group, durable = reader_group(controllers), BoundDurable()
    states = BusStates(connections.bus)
    hosted = [
        Hosted(
            controller,
            connections,
            health,
            policy or QueuePolicy(),
            group=group,
            durable=durable,
            states=states,
        )
        for controller in controllers
    ]
    reader = Reader(
        hosted,
        connections,
        health,
        group=group,
        durable=durable,
        applied=applied or AppliedEvents(writer=connections.writer, reader=connections.reader),
    )
    async with report_blocked_loop(), contain_exits(), asyncio.TaskGroup() as tasks:
        tasks.create_task(connections.bus.failure(), name="bus failure")
        tasks.create_task(reader.run(), name="reader")
        for one in hosted:
            tasks.create_task(one.run(), name=f"controller {one.name}")


def reader_group(controllers: Sequence[Controller]) -> ReaderGroup:
    """The group that processes with these controllers read in (rule B12)."""
    return ReaderGroup(
        {
            controller.name: Selection(
                filters_for(watch.resource for watch in controller.watches),
                selection_digest(controller),
            )
            for controller in controllers
        }
    )
