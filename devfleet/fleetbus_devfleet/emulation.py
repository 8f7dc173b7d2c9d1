"""Emulated clusters for tests and scripts, in a thread of their own.

    with emulated_fleet(["alpha", "beta"]) as fleet:
        alpha = fleet["alpha"]
        alpha.load("manifests.yaml")
        run_something_with(fleet.kubeconfig)                # real clients, in any process
        alpha.wait_for("apps/v1/deployments", "default", "web", is_available)
        with alpha.fault(Fail(503), verb="list"):
            ...

The event loop of the clusters is not the caller's, so a blocking caller and an async one are
served alike, and a test that blocks its own loop does not stop the API servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import warnings
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from fleetbus_devfleet.feed import Feed
from fleetbus_devfleet.stack.plan import PlanError, check_names, fleet_of
from fleetbus_emulator.apiserver import Cluster, NotServed, Partition, serve
from fleetbus_emulator.controllers import EVERYTHING, HOUSEKEEPING, Timing, simulate
from fleetbus_emulator.generate import Churn, Mix, fill
from fleetbus_emulator.manifests import read_manifests
from fleetbus_emulator.scratch import scratch_folder

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import (
        AsyncGenerator,
        Callable,
        Collection,
        Coroutine,
        Generator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from fleetbus_emulator.apiserver import (
        Access,
        Action,
        ApiServers,
        Commit,
        Credentials,
        Logged,
        Rule,
        User,
    )
    from fleetbus_emulator.controllers import Simulator

JsonObject = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")

# A call into the loop takes microseconds; longer means that the loop is stuck.
_STUCK = timedelta(seconds=30)
_PER_OBJECT = timedelta(milliseconds=1)
_POLL_SECONDS = 0.01
_SERVED_WITHIN = timedelta(seconds=5)


class _Loop:
    """The thread whose event loop the clusters live in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="emulated-fleet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        # A runner also ends what no server knows of any more: TLS handshakes that clients let hang.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def run(self, work: Coroutine[Any, Any, T], within: timedelta = _STUCK) -> T:
        """The result of a coroutine that runs in the loop."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("called from within the emulated fleet: its loop would wait for us")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(within.total_seconds())
        except TimeoutError:
            future.cancel()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a function that is called in the loop."""

        async def turn() -> T:
            return function(*args, **kwargs)

        return self.run(turn())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class EmulatedCluster:
    """One cluster of an emulated fleet; every method may be called from any thread.

    Types are named by a string: `v1/pods`, `apps/v1/deployments`, `example.com/v1/widgets`.
    What a real API server would refuse raises `ApiError`, and a type it does not serve `NotServed`.
    """

    def __init__(
        self, cluster: Cluster, servers: ApiServers, simulator: Simulator, loop: _Loop
    ) -> None:
        self.name = cluster.name
        self._cluster = cluster
        self._servers = servers
        self._simulator = simulator
        self._loop = loop

    @property
    def url(self) -> str:
        """The base URL of its API server."""
        return self._servers.url(self.name)

    # objects ------------------------------------------------------------------------------------

    def create(self, gvr: str, obj: JsonObject, namespace: str | None = None) -> JsonObject:
        """Create an object; the namespace may stand in its metadata instead."""
        return self._call(Cluster.create, gvr, obj, namespace)

    def get(self, gvr: str, namespace: str | None, name: str) -> JsonObject | None:
        """An object; None if there is none."""
        return self._call(Cluster.get, gvr, namespace, name)

    def list(self, gvr: str, namespace: str | None = None, labels: str = "") -> list[JsonObject]:
        """The objects of a namespace or of all, by namespace and name."""
        return self._call(Cluster.list, gvr, namespace, labels)

    def update(self, gvr: str, obj: JsonObject, *, subresource: str = "") -> JsonObject:
        """Replace an object; a resourceVersion in it is checked."""
        return self._call(Cluster.update, gvr, obj, subresource=subresource)

    def update_status(self, gvr: str, obj: JsonObject) -> JsonObject:
        """Replace an object's status."""
        return self._call(Cluster.update_status, gvr, obj)

    def patch(self, gvr: str, namespace: str | None, name: str, patch: JsonObject) -> JsonObject:
        """Merge-patch an object."""
        return self._call(Cluster.patch, gvr, namespace, name, patch)

    def apply(self, gvr: str, obj: JsonObject, *, manager: str, force: bool = False) -> JsonObject:
        """Apply an object server-side."""
        return self._call(Cluster.apply, gvr, obj, manager=manager, force=force)

    def delete(self, gvr: str, namespace: str | None, name: str) -> None:
        """Delete an object, or begin to (finalizers, a pod's grace period)."""
        self._call(Cluster.delete, gvr, namespace, name)

    def load(self, path: Path | str) -> list[JsonObject]:
        """Create all objects of a YAML file, CRDs and Lists included; returns them as stored.

        Raises:
            ValueError: the file has something that is no object.
            NotServed: a type is not served, also not after the CRDs of the file.
            ApiError: an object was refused.
        """
        return [self._create_document(document) for document in read_manifests(path)]

    def fill(
        self,
        objects: int,
        *,
        seed: int = 0,
        only: Collection[str] = (),
        canary: str = "",
        hostile: bool = False,
    ) -> Counter[str]:
        """Put so many realistic objects into the cluster; see `fleetbus_emulator.generate.fill`."""

        async def work() -> Counter[str]:
            return fill(
                self._cluster,
                objects=objects,
                seed=seed,
                only=only,
                canary=canary,
                hostile=hostile,
            )

        return self._loop.run(work(), _STUCK + objects * _PER_OBJECT)

    @contextmanager
    def churning(
        self, per_second: float, *, seed: int = 0, mix: Mix | None = None, only: Sequence[str] = ()
    ) -> Generator[None]:
        """Change what is in the cluster, so many times in a second, while the context lasts.

        Raises:
            LookupError: There was nothing to change; raised at the end.
        """
        churn = self._loop.call(Churn, self._cluster, seed=seed, mix=mix, only=tuple(only))

        async def begin() -> asyncio.Task[None]:
            return asyncio.create_task(churn.drive(per_second), name=f"churn {self.name}")

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        task = self._loop.run(begin())
        try:
            yield
        finally:
            self._loop.run(end())

    def wait_for(
        self,
        gvr: str,
        namespace: str | None,
        name: str,
        condition: Callable[[JsonObject], object] = bool,
        within: timedelta = timedelta(seconds=10),
    ) -> JsonObject:
        """Wait until the object exists and the condition holds for it; returns it.

        Raises:
            TimeoutError: it did not come to that; the message has the object.
        """
        deadline = time.monotonic() + within.total_seconds()
        while True:
            found = self.get(gvr, namespace, name)
            if found is not None and condition(found):
                return found
            if time.monotonic() > deadline:
                where = f"{self.name}: {gvr} {namespace or '-'}/{name}"
                raise TimeoutError(f"{where} is not as expected: {found!r}")
            time.sleep(_POLL_SECONDS)

    def settle(self, within: timedelta = timedelta(seconds=10)) -> None:
        """Wait until the simulated controllers are at rest.

        Raises:
            TimeoutError: something is still going on.
        """
        self._loop.run(self._simulator.settled(), within)

    # what happened, and what should go wrong ----------------------------------------------------

    @property
    def requests(self) -> list[Logged]:
        """The latest requests, oldest first."""
        return self._loop.call(lambda: list(self._cluster.requests))

    def feed(self) -> Feed:
        """What is in it now, and every write from now on, as events of the bus."""
        return self._loop.call(Feed, self._cluster)

    @property
    def history(self) -> list[Commit]:
        """The ground truth: every committed write that is remembered, oldest first."""
        return self._loop.call(lambda: list(self._cluster.history))

    @property
    def open_watches(self) -> int:
        """How many watches clients hold open."""
        return self._loop.call(lambda: self._cluster.open_watches)

    @contextmanager
    def fault(self, action: Action, **match: Any) -> Generator[Rule]:
        """Misbehave while the context lasts; takes what `add_fault` takes."""
        rule = self.add_fault(action, **match)
        try:
            yield rule
        finally:
            self._loop.call(rule.remove)

    def add_fault(self, action: Action, **match: Any) -> Rule:
        """Misbehave from now on; takes what `Cluster.faults.add` takes.

        A rule that names what is not served, and so most likely is misspelt, is told of by a
        UserWarning.
        """
        rule = self._loop.call(self._cluster.faults.add, action, **match)
        doubt = self._call(Cluster.doubt, rule.match)
        if doubt:
            warnings.warn(f"a fault of {self.name}: {doubt}", stacklevel=2)
        return rule

    def compact(self, resource_version: int | None = None) -> None:
        """Forget the events up to a revision (None: all): older watches and pages are too old."""
        self._call(Cluster.compact, resource_version)

    def roll_back(self, resource_version: int) -> None:
        """Return to a past state and revision, as after restoring etcd from a backup."""
        self._call(Cluster.roll_back, resource_version)

    @property
    def resource_version(self) -> int:
        """The revision of the last write."""
        return self._loop.call(lambda: self._cluster.resource_version)

    @property
    def credentials(self) -> Credentials:
        """The tokens and client certificates it accepts; they may come and go."""
        return self._cluster.credentials

    def partition(self, partition: Partition = Partition.HANG) -> None:
        """Cut it off until it is healed: connections are refused, or nothing gets through."""
        self._loop.run(self._servers.partition(self.name, partition))

    def heal(self) -> None:
        """End the partition; what hung goes on where it was."""
        self._loop.run(self._servers.heal(self.name))

    def stop(self) -> None:
        """Stop its API server: connections break and are refused, nothing is forgotten."""
        self._loop.run(self._servers.stop(self.name))

    def start(self) -> None:
        """Start its API server again, at the address it had."""
        self._loop.run(self._servers.start(self.name))

    def _call(
        self, method: Callable[Concatenate[Cluster, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._loop.call(method, self._cluster, *args, **kwargs)

    def _create_document(self, document: JsonObject) -> JsonObject:
        api_version, kind = document["apiVersion"], document["kind"]
        deadline = time.monotonic() + _SERVED_WITHIN.total_seconds()
        while (gvr := self._call(Cluster.gvr_of, api_version, kind)) is None:
            if time.monotonic() > deadline:
                raise NotServed(f"cluster {self.name} serves no kind {kind} of {api_version}")
            time.sleep(_POLL_SECONDS)  # the CRD before it is not established yet
        return self.create(gvr, document)


class EmulatedFleet:
    """Emulated clusters by name: `fleet["alpha"]`, in the order they were named.

    Attributes:
        kubeconfig: a kubeconfig with one context per cluster, named after it.
    """

    def __init__(
        self,
        clusters: Sequence[EmulatedCluster],
        kubeconfig: Path,
        write: Callable[[Path | str, str | None, User | None], None],
    ) -> None:
        self._clusters = {cluster.name: cluster for cluster in clusters}
        self._write = write
        self.kubeconfig = kubeconfig

    def write_kubeconfig(
        self, path: Path | str, token: str | None = None, *, user: User | None = None
    ) -> None:
        """Write a kubeconfig for somebody: with a token, or with client certificates of a user.

        Clients show both over HTTPS only.
        """
        self._write(path, token, user)

    def __getitem__(self, name: str) -> EmulatedCluster:
        try:
            return self._clusters[name]
        except KeyError:
            known = ", ".join(self._clusters)
            raise KeyError(f"no cluster {name!r} in this fleet, only {known}") from None

    def __len__(self) -> int:
        return len(self._clusters)

    @property
    def names(self) -> list[str]:
        """The names of the clusters."""
        return list(self._clusters)

    @property
    def clusters(self) -> list[EmulatedCluster]:
        """The clusters."""
        return list(self._clusters.values())


@contextmanager
def emulated_fleet(
    clusters: int | Sequence[str] = 3,
    *,
    workloads: bool = True,
    timing: Timing | None = None,
    tls: bool = False,
    seed: int | None = None,
    tokens: Mapping[str, str | User] | None = None,
    authorize: Callable[[Access], bool] | Literal["rbac"] | None = None,
    progress_interval: timedelta | None = None,
) -> Generator[EmulatedFleet]:
    """Serve emulated clusters on free loopback ports while the context lasts.

    Args:
        clusters: their names, or how many (`hub`, `eu1`, `us1`, …).
        workloads: whether Deployments become ready and Jobs complete; without it pods stay Pending.
            Namespaces end and garbage is collected in any case.
        timing: how long workloads take; by default they take no time.
        tls: serve HTTPS.
        seed: makes generated names and simulated choices repeatable.
        tokens: user names (or Users) by bearer token; None lets everybody in as admin, unless
            `authorize` is given. The fleet's own kubeconfig shows the first one.
        authorize: who may do what: a function, or "rbac" for the Roles and bindings there.
        progress_interval: see `Cluster`; 10 minutes for quiet resources like those of real servers.

    Raises:
        PlanError: a name is not a DNS label or stands there twice, or there is no cluster.
    """
    if isinstance(clusters, str):
        raise PlanError(f"clusters are a number or a list of names, not {clusters!r}")
    names = [c.name for c in fleet_of(clusters)] if isinstance(clusters, int) else list(clusters)
    check_names(names)
    with scratch_folder("emulation") as folder:
        loop = _Loop()
        loop.start()
        try:
            more: dict[str, Any] = {} if authorize is None else {"authorize": authorize}
            more |= {"seed": seed, "tokens": tokens, "progress_interval": progress_interval}
            emulated = [loop.call(Cluster, name, **more) for name in names]
            serving = _serving(emulated, tls=tls, workloads=workloads, timing=timing, seed=seed)
            with _entered(loop, serving) as (servers, simulators):

                def write(path: Path | str, token: str | None, user: User | None) -> None:
                    loop.call(servers.write_kubeconfig, path, token, user=user)

                kubeconfig = folder / "kubeconfig"
                write(kubeconfig, next(iter(tokens), None) if tokens else None, None)
                alive = zip(emulated, simulators, strict=True)
                found = [EmulatedCluster(cluster, servers, sim, loop) for cluster, sim in alive]
                yield EmulatedFleet(found, kubeconfig, write)
        finally:
            loop.stop()


@contextlib.asynccontextmanager
async def _serving(
    clusters: Sequence[Cluster],
    *,
    tls: bool,
    workloads: bool,
    timing: Timing | None,
    seed: int | None,
) -> AsyncGenerator[tuple[ApiServers, Sequence[Simulator]]]:
    controllers = EVERYTHING if workloads else HOUSEKEEPING
    async with (
        serve(clusters, tls=tls) as servers,
        simulate(clusters, timing=timing, seed=seed, controllers=controllers) as simulators,
    ):
        yield servers, simulators


@contextmanager
def _entered(loop: _Loop, context: contextlib.AbstractAsyncContextManager[T]) -> Generator[T]:
    """An async context manager, entered and left in the loop's thread by one task.

    One task, because what is inside has cancel scopes, which must be left where they were entered.
    """
    entered: asyncio.Future[T] = loop.call(lambda: asyncio.get_running_loop().create_future())
    leave = loop.call(asyncio.Event)

    async def live() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leave.wait()
        except BaseException as e:
            if not entered.done():
                entered.set_exception(e)
                return
            raise

    async def value() -> T:
        return await entered

    task = loop.call(lambda: asyncio.get_running_loop().create_task(live(), name="emulated fleet"))

    async def ended() -> None:
        leave.set()
        await task

    try:
        yield loop.run(value())
    finally:
        loop.run(ended())
