"""Distributors and agents with one rule taken away, to see that the campaign notices (V6).

Product code has no switches: what is taken away is patched here, in the process of the nursery.
"""

# The patches name private parts, so that pyright fails when a patch no longer fits the code.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace as changed
from datetime import timedelta
from typing import Any, Final, NamedTuple

from fleetbus.clusters.info import ClusterInfo
from fleetbus.fleet.inventory_chunks import refs_of
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.identity import IdentityCheck
from fleetbus.owned_objects import claim as claims
from fleetbus.owned_objects import decision
from fleetbus.owned_objects.claim import Claim, Ownership
from fleetbus.ownership import Owner
from fleetbus_agent import gateway
from fleetbus_distributor.hub.chunks import read_unused, release
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.rollout_state import GateState
from fleetbus_distributor.hub.status import Status, is_changed
from fleetbus_distributor.plan import intent, plan
from fleetbus_distributor.plan.fleet_fuse import FleetFuse
from fleetbus_distributor.plan.intent import Inventory, Owned
from fleetbus_distributor.plan.plan import Facts, Plan
from fleetbus_distributor.render.spec import Placement
from fleetbus_distributor.rollout.advance import Finding
from fleetbus_distributor.rollout.votes import Votes
from fleetbus_distributor.rounds import cleanup, distribute
from fleetbus_distributor.rounds.reconcile import Distributor
from fleetbus_distributor.targets import apply, converge, remove
from fleetbus_distributor.targets.outcome import ClusterOutcome, State
from fleetbus_distributor.targets.target import Target
from fleetbus_proto.resources import Resource
from support.processes.patch import replace


def _is_ours(_live: Mapping[str, Any], _owner: Owner, **_: object) -> Claim:
    return Claim(Ownership.OURS, is_confirmed=True)


def no_limits() -> None:
    """D8: what nobody requested is deleted, whatever its size."""

    def grant(_facts: Facts, planned: Plan) -> Plan:
        return planned

    replace(plan, "_hold", grant)
    no_budget()


def no_budget() -> None:
    """D8: the fleet has no budget of deletions."""

    async def grant(_self: FleetFuse, _facts: Facts, planned: Plan, _hub: KubeClient) -> Plan:
        return planned

    replace(FleetFuse, "check", grant)


def delete_by_name() -> None:
    """D5: an entry of the inventory is enough; the mark does not count."""
    replace(remove, "claim", _is_ours)


def delete_without_uid() -> None:
    """D5: a deletion has no precondition."""
    inner = KubeClient.delete

    async def delete(
        self: KubeClient, resource: str | Resource, namespace: str, name: str, **_: Any
    ) -> bool:
        return await inner(self, resource, namespace, name)

    replace(KubeClient, "delete", delete)


def apply_to_anybodys() -> None:
    """D4: whatever has the name of a template counts as ours."""
    replace(apply, "claim", _is_ours)


def apply_before_record() -> None:
    """D2: what is about to be owned is recorded afterwards only."""

    def known(_recorded: Inventory, _needed: Inventory) -> bool:
        return True

    replace(intent, "covers", known)


def any_cluster_answers() -> None:
    """W13: whoever answers is believed."""

    async def believe(self: IdentityCheck, *, alone: bool) -> None:
        self._uid = await self._read(alone=alone)

    replace(IdentityCheck, "_check", believe)


def prune_unrendered() -> None:
    """D1: a cluster whose template has an error wants nothing."""
    inner = plan.make_plan

    def anyway(facts: Facts) -> Plan:
        return inner(changed(facts, unrendered=frozenset()))

    replace(distribute, "make_plan", anyway)


def let_go_unreachable() -> None:
    """D7: a deleted resource does not wait for clusters that are away."""

    def always(_outcome: ClusterOutcome, *_: object) -> bool:
        return True

    replace(cleanup, "_may_give_up", always)


def absent_is_unjoined() -> None:
    """D7: a cluster that is not in the fleet was unjoined."""

    async def all_of_them(
        _self: Distributor, fleet: Any, _hub: KubeClient, inventory: Inventory
    ) -> frozenset[str]:
        return frozenset(inventory.keys() - {info.name for info in fleet.clusters()})

    replace(Distributor, "_unjoined", all_of_them)


def believe_labels() -> None:
    """D1: the labels that the process knows are enough for a deletion."""

    async def believe(
        planned: Plan, _placement: Placement, _hub: KubeClient, _clusters: Collection[ClusterInfo]
    ) -> Plan:
        return planned

    replace(distribute, "recheck", believe)


def ignore_target_mark() -> None:
    """D5: an object that is marked for another cluster is deleted like any other."""

    def everywhere(_mark: Owner, _cluster: str, _uid: str) -> bool:
        return True

    replace(claims, "is_marked_for", everywhere)


def prune_aliased() -> None:
    """D5: that a cluster has two names does not matter."""
    inner = converge._remove_all

    async def anyway(target: Target, prune: Sequence[Owned], result: ClusterOutcome) -> None:
        target.aliases = ()
        await inner(target, prune, result)

    async def first_name(_self: IdentityCheck, *, alone: bool) -> None:
        _self._uid = await _self._read(alone=alone)

    replace(converge, "_remove_all", anyway)
    replace(IdentityCheck, "_check", first_name)


def ignore_protection() -> None:
    """D5: the annotation `protect` does not matter."""

    def never(_live: Mapping[str, Any]) -> bool:
        return False

    replace(decision, "is_protected", never)


def release_chunks_first() -> None:
    """D2: old chunks go before the status that no longer lists them."""
    inner = Document.write_status

    async def write(self: Document, status: Status) -> None:
        old = [ref.name for ref in refs_of(self._stored)]
        if old and is_changed(status, self.status):
            namespace = self.metadata["namespace"]
            await release(self._client, await read_unused(self._client, namespace, old))
        await inner(self, status)

    replace(Document, "write_status", write)


def gates_pass() -> None:
    """D17, D19: no gate needs a vote."""

    async def passed(_self: Votes, _subject: str) -> Finding:
        return Finding(GateState.PASSED)

    replace(Votes, "__call__", passed)


def lost_is_undone() -> None:
    """D2: an apply that was sent and not answered surely did not happen, so it is not on record."""
    inner = ClusterOutcome.add

    def add(
        self: ClusterOutcome, state: State, reason: str, message: str, retry: timedelta | None
    ) -> None:
        if state is State.UNREACHABLE:
            self.inventory = {key: owned for key, owned in self.inventory.items() if owned.uid}
        inner(self, state, reason, message, retry)

    replace(ClusterOutcome, "add", add)


def calls_run_twice() -> None:
    """Each agent of a cluster takes each call; they do not share them."""
    replace(gateway, "AGENTS", "")


class DistributorMutation(NamedTuple):
    """A rule that can be taken away, and the directed steps that show it."""

    apply: Callable[[], None]
    steps: tuple[str, ...]


DISTRIBUTOR_MUTATIONS: Final[dict[str, DistributorMutation]] = {
    "no-limits": DistributorMutation(no_limits, ("relabelled",)),
    "no-budget": DistributorMutation(no_budget, ("many_owners",)),
    "delete-by-name": DistributorMutation(delete_by_name, ("stranger",)),
    "delete-without-uid": DistributorMutation(delete_without_uid, ("replaced",)),
    "apply-to-anybodys": DistributorMutation(apply_to_anybodys, ("stranger",)),
    "apply-before-record": DistributorMutation(apply_before_record, ("crashed",)),
    "any-cluster-answers": DistributorMutation(any_cluster_answers, ("swapped",)),
    "prune-unrendered": DistributorMutation(prune_unrendered, ("unrendered",)),
    "let-go-unreachable": DistributorMutation(let_go_unreachable, ("unreachable",)),
    "absent-is-unjoined": DistributorMutation(absent_is_unjoined, ("vanished",)),
    "believe-labels": DistributorMutation(believe_labels, ("late_labels",)),
    "ignore-target-mark": DistributorMutation(ignore_target_mark, ("copied",)),
    "prune-aliased": DistributorMutation(prune_aliased, ("two_names",)),
    "ignore-protection": DistributorMutation(ignore_protection, ("protected",)),
    "release-chunks-first": DistributorMutation(release_chunks_first, ("chunked",)),
    "gates-pass": DistributorMutation(gates_pass, ("unvoted",)),
    "lost-is-undone": DistributorMutation(lost_is_undone, ("answer_lost",)),
    "calls-run-twice": DistributorMutation(calls_run_twice, ("two_agents",)),
}
