"""Parents in some clusters, their children in others: made, kept right, and taken away again.

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
from fleetbus.clusters.leaving import NAMESPACE
from fleetbus.controller.controller import Controller, Reconcile
from fleetbus.controller.filters import (
    ClusterFilter,
    choose_clusters,
    read_namespaces,
    read_selector,
)
from fleetbus.errors import ConfigError
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request, Result
from fleetbus.workqueue.queue import Backoff, Queue

_UNREACHABLE: Final = ("wait", "retain")
_BELIEVED_SHARE: Final = 2
_OURS: Final = "fleetbus.dev"
"""The distributor takes our finalizer off its own objects, whoever else waits."""
D = TypeVar("D", bound=Desired)
P = TypeVar("P", bound=Propagate)


class Children(Controller):
    """Keeps the children of parent objects, in the parents' clusters or in others.

    A child carries the owner mark of its parent, never a Kubernetes ownerReference. Nothing is
    deleted unless parent and child were read live, and only what carries every mark of this
    controller. An object of a child's name without our mark is never touched; it is reported in
    the log, in `fleetbus_child_problems_total`, and as an Event of the parent.

    Args:
        name: a DNS-1123 label; it stands on the children, so another name means other children.
        parents: the resource of the parents, like `v1/pods`.
        children: the resource or resources of the children.
        parent_clusters: where parents are; as for `watch`.
        parent_namespaces: their namespaces; None for all.
        parent_selector: a label selector. A parent that leaves it loses its children.
        parent_annotation_selector: the same for annotations.
        child_clusters: where children may be; as for `watch`.
        finalizer: keep a deleted parent until its children are gone, by our finalizer
            `fleetbus.dev/cleanup`. Without it the children go when the parent is seen to be gone.
        unreachable: of a deleted parent with children in a cluster that does not answer, or has
            vanished from the fleet: `wait` keeps the parent until it answers; `retain` lets the
            parent go, and reports what stays. A cluster that was unjoined is waited for by nobody.
        hub_namespace: where fleetbus lives on the hub, with the records of unjoined clusters.
        impersonate: from the name of the parent's cluster to the user in whose name children are
            written; our own user needs the right to impersonate it.
        copy_labels: give children the labels of their parent, under those they name themselves.
        sweep: how often the children of parents that are gone are searched for.
        recheck: how soon a cluster that does not answer, or a kind that is missing, is looked at
            again.
        concurrency: as for `Controller`.
        timeout: as for `Controller`; so is the next one.
        backoff: the delays after failures.

    Raises:
        ConfigError: the name, a resource, a filter or an option cannot be used.
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
        hub_namespace: str = NAMESPACE,
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
        if not resources:
            raise ConfigError(f"controller {name!r}: children names no resource")
        if unreachable not in _UNREACHABLE:
            raise ConfigError(f"controller {name!r}: unreachable is neither 'wait' nor 'retain'")
        if finalizer and self._resource(parents).group == _OURS:
            raise ConfigError(f"controller {name!r}: {parents} have our finalizer for themselves")
        if min(sweep, recheck) <= timedelta():
            raise ConfigError(f"controller {name!r}: sweep and recheck must be positive")
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
            children=tuple(self._resource(resource) for resource in resources),
            is_parent_cluster=choose_clusters(parent_clusters).test,
            is_child_cluster=choose_clusters(child_clusters).test,
            namespaces=read_namespaces(parent_namespaces),
            labels=read_selector("parent_selector", parent_selector),
            annotations=read_selector("parent_annotation_selector", parent_annotation_selector),
            finalizer=finalizer,
            retain=unreachable == "retain",
            hub_namespace=hub_namespace,
            impersonate=impersonate,
            copy_labels=copy_labels,
            recheck=recheck,
        )
        self.orphans = OrphanSweep(self._policy, sweep)
        self._unavailable = UnavailablePlaces(recheck / _BELIEVED_SHARE)
        self._conditions = ConditionReporter(name)
        self._desired: Desired | None = None
        self._propagate: Propagate | None = None
        self.reconcile(self._reconcile_request)

    def desired(self, function: D) -> D:
        """Register the function that says which children a parent shall have; a decorator.

        It is given the parent, the name of its cluster and the fleet, and answers `Child` objects;
        none takes all children away. It must depend on nothing but these, must not write, and is
        called often; what it raises is retried, and nothing is deleted meanwhile.

        Raises:
            ConfigError: there is one already, or it is not `async`.
        """
        self._check("desired", function, self._desired)
        self._check_takes("@desired", function, "parent", "cluster", "fleet")
        self._desired = function
        self._add_function(function)
        return function

    def propagate(self, function: P) -> P:
        """Register the function that reports back to the parent; a decorator.

        It is given the parent, its children as they are, and the fleet, and answers a merge patch
        of the parent, or None. The field `status` goes to the status subresource; what the parent
        shows already is not written.

        Raises:
            ConfigError: there is one already, or it is not `async`.
        """
        self._check("propagate", function, self._propagate)
        self._check_takes("@propagate", function, "parent", "children", "fleet")
        self._propagate = function
        self._add_function(function)
        return function

    def function(self) -> Reconcile:
        """The reconcile function, once the controller is whole.

        Raises:
            ConfigError: it has no desired function.
        """
        if self._desired is None:
            raise ConfigError(f"controller {self.name!r} has no @desired function")
        return super().function()

    def beside(self, queue: Queue, fleet: Fleet) -> Sequence[Coroutine[Any, Any, None]]:
        """The loops that run beside the workers of each process."""
        return [self.orphans.run(queue, fleet)]

    def _check(self, what: str, function: object, earlier: object) -> None:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"controller {self.name!r}: @{what} must be `async def`")
        if earlier is not None:
            raise ConfigError(f"controller {self.name!r} has two @{what} functions")

    async def _reconcile_request(self, request: Request, fleet: Fleet) -> Result | None:
        if self._desired is None:  # checked by `function`, before any request is taken
            raise ConfigError(f"controller {self.name!r} has no @desired function")
        run = ChildrenReconciler(
            self._policy, self._desired, self._propagate, request, fleet, self._unavailable
        )
        result = await run.reconcile()
        await self._conditions.tell(request, run.problems, run.parent, fleet)
        return result
