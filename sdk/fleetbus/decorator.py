"""Objects that get something added where they are.

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
from fleetbus.controller.filters import ClusterFilter, read_namespaces, read_selector
from fleetbus.errors import ConfigError, Conflict, NotFound
from fleetbus.fleet.cluster import Cluster
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.kube.merge_patch import smallest_patch
from fleetbus.reconcile import Request, TerminalError
from fleetbus.workqueue.queue import Backoff

log = structlog.get_logger()

Decorate: TypeAlias = Callable[[Object, str], Object | Awaitable[Object | None] | None]
"""From an object, and the name of its cluster, to the object as it shall be, or None."""

_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds between the tries of a write that others keep overtaking: all within one second."""
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
    """Changes objects of one resource in their own clusters, and nothing else about them.

    What differs is written as the smallest merge patch, on the condition that the object is still
    the one that was read live; what somebody else changed meanwhile is read again and both changes
    stay. What is right already is not written.

    Args:
        name: a DNS-1123 label.
        resource: like `v1/configmaps`.
        clusters: as for `watch`, and so are the other filters.
        namespaces: None for all.
        selector: a label selector. What leaves it is left as it is.
        annotation_selector: the same for annotations.
        concurrency: as for `Controller`.
        timeout: as for `Controller`; so is the next one.
        backoff: the delays after failures.

    Raises:
        ConfigError: the name, the resource or a filter cannot be used.
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
        self._namespaces_of = read_namespaces(namespaces)
        self._labels = read_selector("selector", selector)
        self._annotations = read_selector("annotation_selector", annotation_selector)
        self._decorate: Decorate | None = None
        self.reconcile(self._reconcile_request)

    def decorate(self, function: D) -> D:
        """Register the function that changes an object; a decorator. It may be `async`.

        It is given a copy of the object, which it may change and return, and the cluster's name;
        None or an unchanged object means that nothing is to be done. It must come to the same
        answer when it is given its own answer, and can change neither identity nor status.

        Raises:
            ConfigError: there is one already.
        """
        if self._decorate is not None:
            raise ConfigError(f"controller {self.name!r} has two @decorate functions")
        self._check_takes("@decorate", function, "object", "cluster")
        self._decorate = function
        self._add_function(function)
        return function

    def function(self) -> Reconcile:
        """The reconcile function, once the controller is whole.

        Raises:
            ConfigError: it has no decorate function.
        """
        if self._decorate is None:
            raise ConfigError(f"controller {self.name!r} has no @decorate function")
        return super().function()

    async def _reconcile_request(self, request: Request, fleet: Fleet) -> None:
        cluster = fleet.cluster(request.cluster)
        found = await cluster.get(self._of, request.namespace, request.name)
        if found is None or not await self._patch_for(found, cluster.name):
            return
        for pause in _PAUSES:
            try:
                await self._write(cluster, request)
            except Conflict:
                log.debug("decoration_overtaken")
                await asyncio.sleep(pause)
            except NotFound:
                return  # it went since it was read
            else:
                return
        await self._write(cluster, request)

    async def _write(self, cluster: Cluster, request: Request) -> None:
        """Once, from a live read: the snapshot may be behind, and lacks what is redacted."""
        live = await cluster.live.get(self._of, request.namespace, request.name)
        patch = await self._patch_for(live, cluster.name) if live is not None else None
        if live is None or not patch:
            return
        metadata = live["metadata"]
        await cluster.patch(
            self._of,
            request.namespace,
            request.name,
            patch,
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
        )

    async def _patch_for(self, obj: Object, cluster: str) -> Object:
        """What is to be changed of an object; empty if nothing, or if it is not ours to change."""
        if self._decorate is None or not self._selects(obj):
            return {}
        answer: object = self._decorate(copy.deepcopy(obj), cluster)
        if inspect.isawaitable(answer):
            answer = cast("object", await answer)
        if answer is None:
            return {}
        if not isinstance(answer, dict):
            raise TerminalError(f"@decorate answered {type(answer).__name__}, no object")
        patch = smallest_patch(obj, cast("Object", answer))
        touched = (patch.keys() & _FIXED) | (
            cast("Object", patch.get("metadata") or {}).keys() & _FIXED_METADATA
        )
        if touched or ("metadata" in patch and patch["metadata"] is None):
            raise TerminalError(f"@decorate may not change {', '.join(sorted(touched))}")
        return patch

    def _selects(self, obj: Object) -> bool:
        metadata = obj["metadata"]
        return (
            not metadata.get("deletionTimestamp")
            and (
                self._namespaces_of is None
                or (metadata.get("namespace") or "") in self._namespaces_of
            )
            and self._labels.matches(metadata.get("labels") or {})
            and self._annotations.matches(metadata.get("annotations") or {})
        )
