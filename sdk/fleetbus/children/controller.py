"""The controller `Children`: creates, updates and deletes children of parents in other clusters.

web = fleetbus.Children("web", parents="v1/configmaps", parent_clusters=["eu1"],
                        parent_selector="managed=yes", children="apps/v1/deployments")

@web.desired
async def deployments(parent: fleetbus.Object, cluster: str, fleet: fleetbus.Fleet):
    return [fleetbus.Child("us1", {...})]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from fleetbus.children.conditions import ConditionReporter
from fleetbus.children.garbage import OrphanSweep
from fleetbus.children.marks import CONTROLLER_LABEL
from fleetbus.children.policy import Desired, Policy, Propagate
from fleetbus.children.reconciler import ChildrenReconciler
from fleetbus.children.unavailable import UnavailablePlaces
from fleetbus.controller.controller import Controller, Reconcile
from fleetbus.controller.filters import ClusterFilter
from fleetbus.controller.watch import read_resource
from fleetbus.errors import ConfigError
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.applied import ServerAnswers
from fleetbus.reconcile import Request, Result
from fleetbus.workqueue.queue import Backoff, Queue

_UNREACHABLE: Final = ("wait", "retain")
_UNAVAILABLE_SHARE: Final = 2
_OURS: Final = "fleetbus.dev"
"""The distributor removes our finalizer from its own objects, regardless of other controllers."""
D = TypeVar("D", bound=Desired)
P = TypeVar("P", bound=Propagate)


class Children(Controller):
    """Keeps the children of parent objects, in the parents' clusters or in others.

    A child carries the owner mark of its parent, never a Kubernetes ownerReference. An object is
    only deleted after parent and child were read live, and if it carries every mark of this
    controller. An object with a child's name but without our mark is never changed; it is reported
    in the log, in `fleetbus_child_problems_total`, and as an Event of the parent.

    Args:
        name: a DNS-1123 label; it is in the children's marks, so a new name means new children.
        parents: resource of the parents, like `v1/pods`.
        children: resource or resources of the children.
        parent_clusters: the clusters of parents; as for `watch`.
        parent_namespaces: their namespaces; None for all.
        parent_selector: a label selector. A parent that no longer matches loses its children.
        parent_annotation_selector: the same for annotations.
        child_clusters: the clusters that may have children; as for `watch`.
        finalizer: keep a deleted parent until its children are gone, with the finalizer
            `fleetbus.dev/cleanup`. Without it the children are deleted after the parent.
        unreachable: for a deleted parent with children in a cluster that does not answer, or has
            vanished from the fleet: `wait` keeps the parent until it answers; `retain` releases
            the parent, and reports what stays. An unjoined cluster is never waited for.
        hub_namespace: namespace of fleetbus on the hub, which has the records of unjoined clusters;
            by default that of the service (`FLEETBUS_RECONCILER_NAMESPACE`).
        impersonate: maps the parent's cluster to the user that children are written as; our own
            user needs the right to impersonate it.
        copy_labels: add the labels of the parent to children; their own labels win.
        sweep: how often to search for children whose parent is gone.
        recheck: how soon to check again a cluster that does not answer, or a missing kind.
        concurrency: as for `Controller`.
        timeout: as for `Controller`; so is the next one.
        backoff: the delays after failures.

    Raises:
        ConfigError: the name, a resource, a filter or an option is invalid.
    """

    def __init__(
        self,
        name: str,
        *,
        parents: str,
        children: str | Sequence[str],
        parent_clusters: ClusterFilter = None,
        parent_namespaces: Sequence[str] | None = None,
        parent_selector: str = "",
        parent_annotation_selector: str = "",
        child_clusters: ClusterFilter = None,
        finalizer: bool = True,
        unreachable: Literal["wait", "retain"] = "wait",
        hub_namespace: str = "",
        impersonate: Callable[[str], str] | None = None,
        copy_labels: bool = False,
        sweep: timedelta = timedelta(minutes=10),
        recheck: timedelta = timedelta(seconds=15),
        concurrency: int = 8,
        timeout: timedelta = timedelta(seconds=60),
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(
            name, concurrency=concurrency, timeout=timeout, backoff=backoff, follow_fleet=True
        )
        resources = [children] if isinstance(children, str) else list(children)
        with self._named_errors():
            _check_options(parents, resources, unreachable, (sweep, recheck), finalizer=finalizer)
        self.watch(
            parents,
            clusters=parent_clusters,
            namespaces=parent_namespaces,
            selector=parent_selector,
            annotation_selector=parent_annotation_selector,
        )
        for resource in resources:
            self.watch_owned(
                resource, clusters=child_clusters, selector=f"{CONTROLLER_LABEL}={name}"
            )
        self._policy = Policy(
            controller=name,
            parents=self._resource(parents),
            children=tuple(map(self._resource, resources)),
            parent_watch=self.watches[0],
            is_child_cluster=self.watches[1].clusters.test,
            finalizer=finalizer,
            retain=unreachable == "retain",
            hub_namespace=hub_namespace,
            impersonate=impersonate,
            copy_labels=copy_labels,
            recheck=recheck,
        )
        self.orphans = OrphanSweep(self._policy, sweep)
        self._unavailable = UnavailablePlaces(recheck / _UNAVAILABLE_SHARE)
        self._answers = ServerAnswers()
        self._conditions = ConditionReporter(name)
        self._desired: Desired | None = None
        self._propagate: Propagate | None = None
        self.reconcile(self._reconcile_request)

    def desired(self, function: D) -> D:
        """Register the function that returns the desired children of a parent; a decorator.

        It is given the parent, the name of its cluster and the fleet, and returns `Child` objects;
        an empty list deletes all children. It must depend only on its arguments, must not write,
        and is called often; when it raises it is retried, and nothing is deleted meanwhile.

        Raises:
            ConfigError: one is registered already, or it is not `async`.
        """
        self._check("desired", function, self._desired)
        self._check_takes("@desired", function, "parent", "cluster", "fleet")
        self._desired = function
        self._add_function(function)
        return function

    def propagate(self, function: P) -> P:
        """Register the function that propagates the state of children to the parent; a decorator.

        It is given the parent, its current children and the fleet, and returns a merge patch of
        the parent, or None. The field `status` goes to the status subresource; a patch that
        changes nothing is not sent.

        Raises:
            ConfigError: one is registered already, or it is not `async`.
        """
        self._check("propagate", function, self._propagate)
        self._check_takes("@propagate", function, "parent", "children", "fleet")
        self._propagate = function
        self._add_function(function)
        return function

    def function(self) -> Reconcile:
        """Return the reconcile function of a complete controller.

        Raises:
            ConfigError: it has no desired function.
        """
        if self._desired is None:
            raise ConfigError(f"controller {self.name!r} has no @desired function")
        return super().function()

    def background_loops(self, queue: Queue, fleet: Fleet) -> Sequence[Coroutine[Any, Any, None]]:
        """The orphan sweep, in each process."""
        return [self.orphans.run(queue, fleet)]

    def _check(self, what: str, function: object, earlier: object) -> None:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"controller {self.name!r}: @{what} must be `async def`")
        if earlier is not None:
            raise ConfigError(f"controller {self.name!r} has two @{what} functions")

    async def _reconcile_request(self, request: Request, fleet: Fleet) -> Result | None:
        if self._desired is None:  # `function` has checked it at the start
            raise ConfigError(f"controller {self.name!r} has no @desired function")
        run = ChildrenReconciler(
            self._policy,
            self._desired,
            self._propagate,
            request,
            fleet,
            self._unavailable,
            self._answers,
        )
        result = await run.reconcile()
        await self._conditions.report(request, run.conditions, run.parent, fleet)
        return result


def _check_options(
    parents: str,
    children: Sequence[str],
    unreachable: str,
    intervals: Sequence[timedelta],
    *,
    finalizer: bool,
) -> None:
    """Check the options that no watch has checked.

    Raises:
        ConfigError: one is invalid.
    """
    if not children:
        raise ConfigError("children must name a resource")
    if unreachable not in _UNREACHABLE:
        raise ConfigError("unreachable must be 'wait' or 'retain'")
    if finalizer and read_resource(parents).group == _OURS:
        raise ConfigError(f"finalizer=True is not possible for {parents}")
    if min(intervals) <= timedelta():
        raise ConfigError("sweep and recheck must be positive")
