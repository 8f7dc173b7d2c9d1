"""The distributor service: composition root."""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections.abc import Sequence
from contextlib import aclosing

import structlog
import uvloop

from fleetbus.deletions.budget import DeletionBudget
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.log_levels import follow_levels
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings, tell_unknown_settings
from fleetbus.worker.connections import connect
from fleetbus.worker.host import run_controllers
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_distributor.announce.announce import Announcer
from fleetbus_distributor.controllers import (
    NAME,
    TARGETS,
    FleetChanges,
    Requeuer,
    build_controllers,
)
from fleetbus_distributor.hub.publish_events import EventPublisher
from fleetbus_distributor.orphan_sweep import OrphanSweep
from fleetbus_distributor.rollout.votes import Votes, VoteWatch
from fleetbus_distributor.rounds.failing_pods import FailingPods
from fleetbus_distributor.rounds.missing_objects import MissingObjects
from fleetbus_distributor.rounds.reconcile import Distributor
from fleetbus_distributor.rounds.settled import SettledRounds
from fleetbus_distributor.rounds.status_pace import StatusPace
from fleetbus_distributor.settings import DistributorSettings, share_settings
from fleetbus_distributor.targets.memory import TypeWatch
from fleetbus_distributor.targets.shared_cooldowns import SharedCooldowns

log = structlog.get_logger()


async def run(
    shared: SharedSettings, settings: DistributorSettings, *, health: Health | None = None
) -> None:
    """Run the distributor until cancelled.

    Args:
        shared: how to reach the hub, NATS and Redis.
        settings: intervals and limits.
        health: checks of the process; made here if it is not given.
    """
    checks = health or Health()
    started = checks.starting()
    async with (
        checks.serve(shared.health_host, shared.health_port, shared.health_port_file),
        connect(shared, name=NAME, health=checks, user_agent="fleetbus-distributor") as connections,
        aclosing(RedisQueue(connections.redis, NAME)) as for_all,
        aclosing(RedisQueue(connections.redis, TARGETS)) as for_one,
        asyncio.TaskGroup() as outer,
    ):
        clusters, fleet = connections.clusters, connections.fleet
        publisher = EventPublisher(connections.bus)
        requeue = Requeuer(for_all, for_one)
        distributor = Distributor(
            settings=settings,
            budget=DeletionBudget(connections.redis),
            missing=MissingObjects(connections.redis),
            pace=StatusPace(connections.redis),
            settled=SettledRounds(settings.resync),
            requeue=requeue,
            read_vote=Votes(connections.bus),
            announce=Announcer(publisher.offer),
            explain=FailingPods(fleet.reader),
        )
        cooldowns = SharedCooldowns(connections.redis, distributor.executor.breaker)
        controllers = build_controllers(settings, distributor)
        changes = FleetChanges(clusters=clusters, fleet=fleet, queue=for_all)
        voted = VoteWatch(bus=connections.bus, fleet=fleet, queue=for_all, controller=NAME)
        types = TypeWatch(
            missing=distributor.executor.memory.types, reader=fleet.reader, requeue=requeue
        )
        sweep = OrphanSweep(fleet, fleet.reader, settings.resync)
        outer.create_task(clusters.run(), name="clusters")
        outer.create_task(publisher.run(), name="events")
        # In a group of their own, so that they have ended before the clients are closed.
        async with asyncio.TaskGroup() as group:
            group.create_task(changes.run(), name="fleet changes")
            group.create_task(sweep.run(), name="orphans")
            group.create_task(cooldowns.run(), name="cooldowns")
            group.create_task(voted.run(), name="votes")
            group.create_task(types.run(), name="types")
            group.create_task(share_settings(connections.redis, settings), name="settings")
            group.create_task(run_controllers(controllers, connections, checks), name="controllers")
            started()
            log.info("distributor_started", hub=shared.hub_cluster)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `fleetbus-distributor`."""
    parser = argparse.ArgumentParser(
        prog="fleetbus-distributor",
        description="Applies MultiClusterResources; settings are environment variables "
        "FLEETBUS_… and FLEETBUS_DISTRIBUTOR_….",
    )
    parser.parse_args(argv)
    return run_service("fleetbus-distributor", _main, loop_factory=uvloop.new_event_loop)


def shorten_collections() -> None:
    """Let the garbage collector look at few objects at a time: the event loop stands still.

    A round makes hundreds of thousands of objects that stay until its end. By the thresholds of
    `run_service`, one collection of the young ones took 45 ms, and one of the next generation would
    have taken a second.
    """
    gc.set_threshold(4_000, 3, 10_000)


async def _main() -> None:
    shorten_collections()
    shared = load_settings(SharedSettings)
    settings = load_settings(DistributorSettings)
    set_up_logs(shared.log_format, shared.log_level)
    levels = shared.log_levels_file
    tell_unknown_settings(DistributorSettings)
    await run_until_stopped(distributor=run(shared, settings), levels=follow_levels(levels))
