"""One emulated cluster as tests and scripts use it, from any thread."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from fleetbus_emulator.apiserver import Cluster, NotServed, Partition
from fleetbus_emulator.generate import Churn, Mix, fill
from fleetbus_emulator.loop_thread import STUCK, LoopThread
from fleetbus_emulator.manifests import read_manifests

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Generator, Iterable, Sequence
    from pathlib import Path

    from fleetbus_emulator.apiserver import (
        Action,
        ApiServers,
        Commit,
        Credentials,
        LoggedRequest,
        Rule,
    )
    from fleetbus_emulator.controllers import Simulator

JsonObject = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")

_PER_OBJECT = timedelta(milliseconds=1)
_POLL_SECONDS = 0.01
_SERVED_WITHIN = timedelta(seconds=5)


class EmulatedCluster:
    """One cluster of an emulated fleet; every method may be called from any thread.

    Types are named by a string: `v1/pods`, `apps/v1/deployments`, `example.com/v1/widgets`.
    What a real API server would refuse raises `ApiError`, and a type it does not serve `NotServed`.
    """

    def __init__(
        self, cluster: Cluster, servers: ApiServers, simulator: Simulator, loop: LoopThread
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
        """Create an object; its metadata may name the namespace instead."""
        return self.call(Cluster.create, gvr, obj, namespace)

    def get(self, gvr: str, namespace: str | None, name: str) -> JsonObject | None:
        """An object; None if there is none."""
        return self.call(Cluster.get, gvr, namespace, name)

    def list(self, gvr: str, namespace: str | None = None, labels: str = "") -> list[JsonObject]:
        """The objects of a namespace or of all, by namespace and name."""
        return self.call(Cluster.list, gvr, namespace, labels)

    def update(self, gvr: str, obj: JsonObject, *, subresource: str = "") -> JsonObject:
        """Replace an object; a resourceVersion in it is checked."""
        return self.call(Cluster.update, gvr, obj, subresource=subresource)

    def update_status(self, gvr: str, obj: JsonObject) -> JsonObject:
        """Replace an object's status."""
        return self.call(Cluster.update_status, gvr, obj)

    def patch(self, gvr: str, namespace: str | None, name: str, patch: JsonObject) -> JsonObject:
        """Merge-patch an object."""
        return self.call(Cluster.patch, gvr, namespace, name, patch)

    def apply(self, gvr: str, obj: JsonObject, *, manager: str, force: bool = False) -> JsonObject:
        """Apply an object server-side."""
        return self.call(Cluster.apply, gvr, obj, manager=manager, force=force)

    def delete(self, gvr: str, namespace: str | None, name: str) -> None:
        """Delete an object, or begin to (finalizers, a pod's grace period)."""
        self.call(Cluster.delete, gvr, namespace, name)

    def load(self, path: Path | str) -> list[JsonObject]:
        """Create all objects of a YAML file, CRDs and Lists included; returns them as stored.

        Raises:
            ValueError: the file has something that is no object.
            NotServed: a type is not served, also not after the CRDs of the file.
            ApiError: an object was refused.
        """
        return [self._create_document(document) for document in read_manifests(path)]

    def restore(self, objects: Iterable[tuple[str, JsonObject]]) -> int:
        """Store complete objects with uids and status, and leave them alone; see `Simulator.load`.

        Returns how many. Types come before their objects, namespaces before what is in them.
        """
        every = list(objects)

        async def work() -> int:
            return self._simulator.load(every)

        return self._loop.run(work(), STUCK + len(every) * _PER_OBJECT)

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

        return self._loop.run(work(), STUCK + objects * _PER_OBJECT)

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
            obj = self.get(gvr, namespace, name)
            if obj is not None and condition(obj):
                return obj
            if time.monotonic() > deadline:
                where = f"{self.name}: {gvr} {namespace or '-'}/{name}"
                raise TimeoutError(f"{where} is not as expected: {obj!r}")
            time.sleep(_POLL_SECONDS)

    def settle(self, within: timedelta = timedelta(seconds=10)) -> None:
        """Wait until the simulated controllers are at rest.

        Raises:
            TimeoutError: they still have work to do.
        """
        self._loop.run(self._simulator.settled(), within)

    # what happened, and what should go wrong ----------------------------------------------------

    @property
    def requests(self) -> list[LoggedRequest]:
        """The latest requests, oldest first."""
        return self._loop.call(lambda: list(self._cluster.requests))

    @property
    def history(self) -> list[Commit]:
        """The ground truth: every committed write that is remembered, oldest first."""
        return self._loop.call(lambda: list(self._cluster.history))

    @property
    def open_watches(self) -> int:
        """The number of open watches."""
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

        A rule that names something not served, most likely misspelt, gives a UserWarning.
        """
        rule = self._loop.call(self._cluster.faults.add, action, **match)
        doubt = self.call(Cluster.unserved_warning, rule.match)
        if doubt:
            warnings.warn(f"a fault of {self.name}: {doubt}", stacklevel=2)
        return rule

    def compact(self, resource_version: int | None = None) -> None:
        """Forget the events up to a revision (None: all): older watches and pages are too old."""
        self.call(Cluster.compact, resource_version)

    def roll_back(self, resource_version: int) -> None:
        """Return to a past state and revision, as after restoring etcd from a backup."""
        self.call(Cluster.roll_back, resource_version)

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
        """End the partition; requests that hung continue."""
        self._loop.run(self._servers.heal(self.name))

    def stop(self) -> None:
        """Stop its API server: connections break and are refused, nothing is forgotten."""
        self._loop.run(self._servers.stop(self.name))

    def start(self) -> None:
        """Start its API server again, at the address it had."""
        self._loop.run(self._servers.start(self.name))

    def call(
        self, function: Callable[Concatenate[Cluster, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function with the `Cluster` itself, in its event loop; returns the result."""
        return self._loop.call(function, self._cluster, *args, **kwargs)

    def _create_document(self, document: JsonObject) -> JsonObject:
        api_version, kind = document["apiVersion"], document["kind"]
        deadline = time.monotonic() + _SERVED_WITHIN.total_seconds()
        while (gvr := self.call(Cluster.gvr_of, api_version, kind)) is None:
            if time.monotonic() > deadline:
                raise NotServed(f"cluster {self.name} serves no kind {kind} of {api_version}")
            time.sleep(_POLL_SECONDS)  # the CRD before it is not established yet
        return self.create(gvr, document)
