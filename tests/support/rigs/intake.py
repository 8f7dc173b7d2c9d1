"""A controller's way from events to its queue, with a run of its requests at a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.controller_store import Finished, RedisStore
from fleetbus.intake.full_enqueue import FullEnqueue
from fleetbus.intake.intake import Intake
from fleetbus.intake.matching import Reason
from fleetbus.intake.routing import Router
from fleetbus.reconcile import Outcome, Request
from fleetbus.run.current import Run
from fleetbus.snapshot.reads.entries import ObjectVersion
from fleetbus.workqueue import RedisQueue
from fleetbus.workqueue.queue import Add, Lease, decode_trigger
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus_proto.events import Event

PODS, PODS_KEY = "v1/pods", "core/pods"
EU1 = Source(cluster="eu1")
WEB_APP, DB_APP = {"labels": {"app": "web"}}, {"labels": {"app": "db"}}


class Seen(NamedTuple):
    """One run."""

    place: str
    """`<cluster>/<namespace>/<name>`."""
    version: str
    """Version of its pod, as the run read it; empty if it is not there."""
    left: bool


@dataclass
class IntakeRig:
    """One process of a controller; `beside` makes another one.

    Attributes:
        controller: to be given its watches before `start`.
        resyncs: the clusters for which user code failed.
        runs: what was reconciled, in order.
    """

    redis: Redis
    clusters: Clusters
    controller: Controller = field(
        default_factory=lambda: Controller("copier", timeout=timedelta(milliseconds=500))
    )
    resyncs: list[str] = field(default_factory=list[str])
    runs: list[Seen] = field(default_factory=list[Seen])

    def start(self) -> None:
        """Build what a process builds of a whole controller."""
        self.snapshot = Snapshot(self.redis)
        reader = self.snapshot.reader
        router = self.router = Router(
            self.controller,
            clusters=self.clusters,
            fleet=Fleet(self.clusters, reader),
            schedule_resync=self.resyncs.append,
        )
        self.queue = RedisQueue(self.redis, "copier")
        self.store = RedisStore(
            self.controller,
            self.queue,
            redis=self.redis,
            reader=reader,
            make_heartbeat=no_heartbeat,
        )
        self.record = self.store.record
        self.intake = Intake(router, store=self.store, reader=reader)
        self.full = FullEnqueue(
            self.controller, router=router, intake=self.intake, record=self.record, reader=reader
        )

    def beside(self, declare: Callable[[Controller], None] | None = None) -> IntakeRig:
        """Another process of the same controller, or of a later release with other watches."""
        controller = self.controller
        if declare is not None:
            controller = Controller("copier")
            declare(controller)
        other = IntakeRig(self.redis, self.clusters, controller, self.resyncs, self.runs)
        other.start()
        return other

    async def tell(self, *events: Event) -> list[Seen]:
        """Apply and take events, then reconcile; the runs of that."""
        await self.snapshot.apply(*events)
        await self.intake.take(events)
        return await self.reconcile()

    async def enqueue_all(self, reason: Reason = Reason.GAP, cluster: str = "") -> list[Seen]:
        """A full enqueue, then reconcile; the runs of that."""
        await self.full.run(cluster=cluster, reason=reason)
        return await self.reconcile()

    async def reconcile(self, *, is_success: bool = True) -> list[Seen]:
        """Run all that is queued, each reading its own pod, as the worker does it.

        A run without success is one that is tried again.
        """
        done: list[Seen] = []
        while leases := await self.queue.take(500):
            requests = [lease.request for lease in leases]
            standing = {
                cluster: await self.snapshot.reader.versions(
                    cluster, PODS_KEY, [(r.namespace, r.name) for r in requests]
                )
                for cluster in {request.cluster for request in requests}
            }
            finished: list[Finished] = []
            for lease in leases:
                request = lease.request
                left = await self.record.has_left(request)
                run = Run(replace(request, left=left), own=PODS_KEY)
                state = standing[request.cluster].get((request.namespace, request.name))
                version = self._read(lease, run, state)
                place = f"{request.cluster}/{request.namespace}/{request.name}"
                done.append(Seen(place, version, left))
                self.runs.append(done[-1])
                success = run if is_success else None
                finished.append(Finished(lease=lease, outcome=Outcome.DONE, success=success))
            if not is_success:
                again = [Add(one.request, one.priority, one.trigger) for one in leases]
                await self.queue.add(again)
            await self.queue.done_recorded(cast("Any", self.store)._ending_of(finished))
            if not is_success:
                break
        return done

    def _read(self, lease: Lease, run: Run, state: ObjectVersion | None) -> str:
        """Let a run read its own pod: from the event that woke it, or from the snapshot."""
        trigger = decode_trigger(lease.trigger)
        if trigger and self.store.offer(run.own_ref, trigger):
            run.note_read(run.own_ref, trigger)
            return trigger[1]
        if state is None:
            return ""
        run.note_read(run.own_ref, state.version, is_absent=not state.is_live)
        return state.resource_version if state.is_live else ""


def no_heartbeat(_on_lost: Any) -> Any:
    """In place of a heartbeat, where no worker runs."""
    raise AssertionError("no worker runs here")


class Provider:
    """Two clusters whose labels may change."""

    name = "test"

    def __init__(self) -> None:
        self.regions: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.regions.put_nowait({"eu1": "eu", "us1": "us"})

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        while True:
            regions = await self.regions.get()
            yield [
                ClusterInfo(name=name, labels={"region": region}, provider="test", config=None)
                for name, region in regions.items()
            ]


@asynccontextmanager
async def intake_rig(redis: Redis, provider: Provider) -> AsyncGenerator[IntakeRig]:
    """The first process, in a fleet whose clusters are known."""
    clusters = Clusters([provider])
    task = asyncio.create_task(clusters.run())
    await clusters.known()
    opened = IntakeRig(redis, clusters)
    yield opened
    await opened.queue.aclose()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def start(rig: IntakeRig, **filters: Any) -> None:
    rig.controller.watch(PODS, **filters)
    rig.start()
    await rig.snapshot.set_up("eu1", "us1")


def seen(name: str, version: int | str = "", *, left: bool = False) -> Seen:
    return Seen(f"eu1/prod/{name}", str(version), left)


def is_changed(old: Any, new: Any) -> bool:
    """Like a predicate on the generation: what is new, or has another one."""
    if old is None or new is None:
        return True
    return old["metadata"].get("generation") != new["metadata"].get("generation")


async def to_ref(obj: Any, request: Request, _fleet: Fleet) -> Iterable[Request]:
    return [Request("", "us1", "x", obj["metadata"]["ref"])] if obj else [request]
