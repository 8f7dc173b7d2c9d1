"""The controller `Decorator`: changes objects in place.

notes = fleetbus.Decorator("notes", resource="v1/configmaps", selector="decorate=true")

@notes.decorate
def annotate(obj: fleetbus.Object, cluster: str) -> fleetbus.Object | None:
    obj["metadata"].setdefault("annotations", {})["x"] = "y"
    return obj
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar, cast

import structlog

from fleetbus.controller.controller import Controller, Reconcile
from fleetbus.controller.filters import ClusterFilter
from fleetbus.errors import ConfigError, Conflict, NotFound
from fleetbus.fleet.cluster import Cluster
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.applied import ServerAnswers
from fleetbus.kube.client import Object
from fleetbus.kube.merge_patch import smallest_patch
from fleetbus.reconcile import Request, TerminalError
from fleetbus.workqueue.queue import Backoff

log = structlog.get_logger()

Decorate: TypeAlias = Callable[[Object, str], Object | Awaitable[Object | None] | None]
"""Maps an object and the name of its cluster to the desired object, or None."""

_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds between the attempts of a write that hits conflicts; under one second in all."""
_FIXED: Final = frozenset({"apiVersion", "kind", "status"})
_FIXED_METADATA: Final = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "generation",
        "managedFields",
    }
)
D = TypeVar("D", bound=Decorate)


class Decorator(Controller):
    """Changes objects of one resource in their own clusters.

    The difference is written as the smallest merge patch, with the uid and resourceVersion of the
    live read as preconditions; after a conflict the object is read again, so that both changes
    stay. An object that is up to date is not written.

    Args:
        name: a DNS-1123 label.
        resource: like `v1/configmaps`.
        clusters: as for `watch`, and so are the other filters.
        namespaces: None for all.
        selector: a label selector. An object that no longer matches is left as it is.
        annotation_selector: the same for annotations.
        concurrency: as for `Controller`.
        timeout: as for `Controller`; so is the next one.
        backoff: the delays after failures.

    Raises:
        ConfigError: the name, the resource or a filter is invalid.
    """

    def __init__(
        self,
        name: str,
        *,
        resource: str,
        clusters: ClusterFilter = None,
        namespaces: Sequence[str] | None = None,
        selector: str = "",
        annotation_selector: str = "",
        concurrency: int = 8,
        timeout: timedelta = timedelta(seconds=60),
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(name, concurrency=concurrency, timeout=timeout, backoff=backoff)
        self.watch(
            resource,
            clusters=clusters,
            namespaces=namespaces,
            selector=selector,
            annotation_selector=annotation_selector,
            wake_on_leave=False,
        )
        self._of = self._resource(resource)
        self._decorate: Decorate | None = None
        self._answers = ServerAnswers()
        self.reconcile(self._reconcile_request)

    def decorate(self, function: D) -> D:
        """Register the function that changes an object; a decorator. It may be `async`.

        It is given a copy of the object, which it may change and return, and the cluster's name;
        None or an unchanged object means no change. It must be idempotent: given its own result
        it returns the same. It cannot change identity or status.

        Raises:
            ConfigError: one is registered already.
        """
        if self._decorate is not None:
            raise ConfigError(f"controller {self.name!r} has two @decorate functions")
        self._check_takes("@decorate", function, "object", "cluster")
        self._decorate = function
        self._add_function(function)
        return function

    def function(self) -> Reconcile:
        """Return the reconcile function of a complete controller.

        Raises:
            ConfigError: it has no decorate function.
        """
        if self._decorate is None:
            raise ConfigError(f"controller {self.name!r} has no @decorate function")
        return super().function()

    async def _reconcile_request(self, request: Request, fleet: Fleet) -> None:
        cluster = fleet.cluster(request.cluster)
        obj = await cluster.get(self._of, request.namespace, request.name)
        if obj is None or not await self._patch_for(obj, cluster.name):
            return
        for pause in _PAUSES:
            try:
                await self._write(cluster, request)
            except Conflict:
                log.debug("decorate_conflict")
                await asyncio.sleep(pause)
            except NotFound:
                return  # deleted since it was read
            else:
                return
        await self._write(cluster, request)

    async def _write(self, cluster: Cluster, request: Request) -> None:
        """Read live and write once: the snapshot may lag, and lacks redacted fields."""
        live = await cluster.live.get(self._of, request.namespace, request.name)
        patch = await self._patch_for(live, cluster.name) if live is not None else None
        if live is None or not patch:
            return
        metadata = live["metadata"]
        change: Object = {"apiVersion": live["apiVersion"], "metadata": {}, **patch}
        if self._answers.covers(cluster.name, change, live):
            return  # the server omits a `false`, say, or writes a quantity in its own way
        answer = await cluster.patch(
            self._of,
            request.namespace,
            request.name,
            patch,
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
        )
        self._answers.note(cluster.name, change, answer)

    async def _patch_for(self, obj: Object, cluster: str) -> Object:
        """Return the merge patch of an object; empty if nothing changes or it does not match."""
        is_deleted = bool(obj["metadata"].get("deletionTimestamp"))
        if self._decorate is None or is_deleted or not self.watches[0].selects(obj):
            return {}
        answer: object = self._decorate(copy.deepcopy(obj), cluster)
        if inspect.isawaitable(answer):
            answer = cast("object", await answer)
        if answer is None:
            return {}
        if not isinstance(answer, dict):
            raise TerminalError(f"@decorate returned {type(answer).__name__}, not an object")
        patch = smallest_patch(obj, cast("Object", answer))
        touched = (patch.keys() & _FIXED) | (
            cast("Object", patch.get("metadata") or {}).keys() & _FIXED_METADATA
        )
        if touched or ("metadata" in patch and patch["metadata"] is None):
            raise TerminalError(f"@decorate may not change {', '.join(sorted(touched))}")
        return patch
