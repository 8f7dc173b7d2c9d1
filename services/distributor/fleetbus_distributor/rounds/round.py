"""The facts of one round, and the work that it decides on for each cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from fleetbus.kube.client import KubeClient
from fleetbus.kube.impersonation import ActingClient, ServiceAccount
from fleetbus.ownership import Owner
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_distributor.health.cluster_health import NO_RULES, StatusRules
from fleetbus_distributor.plan.intent import Inventory, Key, Owned
from fleetbus_distributor.render.draft import Draft
from fleetbus_distributor.render.spec import DriftPolicy, Policy, Spec
from fleetbus_distributor.render.template import Object

Requeue = Callable[[Owner, str, timedelta], Awaitable[None]]
"""Enqueue a round: of which owner, for which cluster ("" for all), after how long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The facts of one round of one MultiClusterResource, as they are at its beginning.

    Args:
        fleet: the clusters.
        owner: the mark of every object.
        manager: our field manager.
        policy: of the spec.
        service_account: whose rights count on the targets; None for those of our own (rule D16).
        inventory: the intent as it is on record.
        unjoined: clusters that were unjoined.
    """

    fleet: FleetView
    owner: Owner
    manager: str
    policy: Policy
    service_account: ServiceAccount | None
    inventory: Inventory
    unjoined: frozenset[str] = frozenset()

    @property
    def hub(self) -> KubeClient:
        """The client of the hub."""
        return self.fleet.cluster(self.fleet.hub).live

    def client_of(self, name: str) -> KubeClient:
        """A client of a target, with the rights that count there (rule D16).

        Raises:
            ClusterNotFound: it is not in the fleet.
            NotEngaged: it cannot be used yet.
        """
        return self.acting(self.fleet.cluster(name).live)

    def acting(self, client: KubeClient) -> KubeClient:
        """A client of a target with the rights that count there (rule D16)."""
        account = self.service_account
        return ActingClient(client, account.user) if account else client


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one round on one cluster."""

    recorded: Mapping[Key, Owned]
    """The entries on record there."""
    objects: Sequence[Object] = ()
    revision: str = ""
    """Hash of the objects."""
    prune: Sequence[Owned] = ()
    only_compare: bool = False
    is_same: bool = False
    """`revision` was applied here before."""
    may_create: bool = True
    status_rules: StatusRules = field(default=NO_RULES)
    """Rules for the health of the objects, and for the fields to collect from them."""


def work_of(
    name: str,
    draft: Draft,
    spec: Spec,
    *,
    applied: str,
    recorded: Mapping[Key, Owned],
    prune: Sequence[Owned] = (),
    may_create: bool = True,
) -> Work:
    """Decide on the work on a cluster that was rendered (pure).

    Args:
        name: the cluster.
        draft: what is to be there.
        spec: the spec.
        applied: the revision that was last applied there completely.
        recorded: what is on record there.
        prune: what of it goes.
        may_create: whether missing objects are created.
    """
    revision = draft.revisions[name]
    is_same = applied == revision
    return Work(
        recorded=recorded,
        objects=draft.objects[name],
        revision=revision,
        prune=prune,
        only_compare=is_same and spec.policy.drift is not DriftPolicy.CORRECT,
        is_same=is_same,
        may_create=may_create,
        status_rules=StatusRules(spec.health, spec.feedback),
    )
