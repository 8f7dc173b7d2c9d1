"""Plans what the distributor would write for one MultiClusterResource, and why it would not.

The rounds of the distributor run unchanged, one after the other until nothing changes any more, on
clients that send dry runs: so a plan is what the rounds write, not a second implementation of it.
Time does not pass in it: what waits for a controller or a person still waits at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, cast

from fleetbus.kube.client import Object
from fleetbus.kube.merge_patch import merged
from fleetbus.kube.requests import path_of
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES, Owner, is_owned_by
from fleetbus.reconcile import Request
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.status import WARNED
from fleetbus_distributor.preview.diff import diff
from fleetbus_distributor.preview.dry_run_fleet import DryRunFleet
from fleetbus_distributor.preview.plan_client import PlanClient
from fleetbus_distributor.preview.stores import AnyPace, NoNotes, PlannedBudget
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.rollout.changes import RolloutChange
from fleetbus_distributor.rollout.rollouts import ReadVote
from fleetbus_distributor.rounds.reconcile import Distributor
from fleetbus_distributor.rounds.settled import SettledRounds
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_distributor.targets.outcome import ClusterOutcome, State

_MAX_ROUNDS: Final = 20
_CONTROLLER: Final = "plan"


class Action(StrEnum):
    """The kind of a planned write."""

    CREATE = "create"
    CHANGE = "change"
    RECREATE = "recreate"
    DELETE = "delete"
    RELEASE = "release"
    """It stays, without our mark."""


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """One object that would be written."""

    ref: ObjectRef
    action: Action
    diff: Sequence[str] = ()
    is_checked: bool = True
    """Whether the server accepted it; it cannot where a namespace or type does not exist yet."""


@dataclass(frozen=True, slots=True)
class PlannedFinding:
    """Why something is not written, or what is wrong with it."""

    state: State
    reason: str
    message: str
    ref: ObjectRef | None = None


@dataclass(slots=True)
class ClusterPlan:
    """The plan of one cluster."""

    name: str
    objects: list[PlannedObject] = field(default_factory=list[PlannedObject])
    findings: list[PlannedFinding] = field(default_factory=list[PlannedFinding])
    unchanged: int = 0


@dataclass(frozen=True, slots=True)
class Preview:
    """The plan of one MultiClusterResource."""

    namespace: str
    name: str
    clusters: Sequence[ClusterPlan]
    problem: str = ""
    """Why nothing at all is done."""
    status: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """As it would be."""

    @property
    def warnings(self) -> list[str]:
        """Likely mistakes that stop nothing, in the words of the condition `Warning`."""
        return [_words(each) for each in _conditions(self.status, WARNED, "True")]

    @property
    def has_changes(self) -> bool:
        """Whether anything would be written."""
        return any(plan.objects for plan in self.clusters)

    @property
    def has_errors(self) -> bool:
        """Whether a cluster could not be asked, or would refuse an object."""
        states = {finding.state for plan in self.clusters for finding in plan.findings}
        return bool(self.problem) or not states.isdisjoint({State.FAILED, State.UNREACHABLE})


class _Outcomes:
    """Keeps what the rounds report."""

    def __init__(self) -> None:
        self.found: dict[str, ClusterOutcome] = {}

    async def __call__(
        self, document: Document, outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]
    ) -> None:
        del document, old
        self.found |= {outcome.name: outcome for outcome in outcomes}

    async def rollout(self, document: Document, changes: Sequence[RolloutChange]) -> None:
        del document, changes


async def candidate_of(hub: PlanClient, document: Object) -> Object:
    """A MultiClusterResource of a file, as the hub would store it.

    Raises:
        KubeError: the hub refuses it, or a field of it that is none.
    """
    metadata = document["metadata"]
    live = await hub.get(MULTI_CLUSTER_RESOURCES, metadata["namespace"], metadata["name"])
    if live is None:
        return await hub.dry_write(MULTI_CLUSTER_RESOURCES, document, is_new=True)
    marks = {
        name: merged(live["metadata"].get(name) or {}, metadata.get(name) or {})
        for name in ("labels", "annotations")
    }
    # With the other fields of the file: the hub refuses those that are typing errors.
    changed: Object = {
        **document,
        **live,
        "metadata": {**metadata, **live["metadata"], **marks},
        "spec": document.get("spec"),
    }
    stored = await hub.dry_write(MULTI_CLUSTER_RESOURCES, changed, is_new=False)
    generation = int(live["metadata"].get("generation", 0)) + (stored["spec"] != live["spec"])
    return {**stored, "metadata": {**stored["metadata"], "generation": generation}}


async def preview(
    fleet: DryRunFleet,
    resource: Object,
    *,
    budget: PlannedBudget,
    settings: DistributorSettings,
    read_vote: ReadVote,
) -> Preview:
    """Plan one MultiClusterResource.

    Args:
        fleet: the clusters; a plan needs a fresh one.
        resource: the MultiClusterResource, as `candidate_of` returns it or as it is on the hub.
        budget: of the deletions that no edit requests.
        settings: intervals and limits.
        read_vote: reads the last vote on a gate.

    Raises:
        KubeError: the hub refused, or did not answer.
    """
    metadata = resource["metadata"]
    namespace, name = str(metadata["namespace"]), str(metadata["name"])
    path = path_of(MULTI_CLUSTER_RESOURCES, namespace, name)
    hub = fleet.client(fleet.hub)
    hub.place(path, resource)
    outcomes = _Outcomes()
    distributor = Distributor(
        settings=settings,
        budget=budget,
        missing=NoNotes(),
        pace=AnyPace(),
        settled=SettledRounds(timedelta()),
        requeue=_no_requeue,
        announce=outcomes,
        read_vote=read_vote,
    )
    request = Request(_CONTROLLER, fleet.hub, namespace, name)
    for _ in range(_MAX_ROUNDS):
        before = fleet.count_writes()
        await distributor.reconcile(request, fleet)
        if fleet.count_writes() == before:
            break
    after = hub.after(path) or resource
    status: Mapping[str, Any] = after.get("status") or {}
    return Preview(
        namespace,
        name,
        _clusters(fleet, outcomes.found, str(metadata["uid"])),
        _problem(status, outcomes.found),
        status,
    )


async def _no_requeue(_owner: Owner, _cluster: str, _after: timedelta) -> None:
    """Every round of a plan is one for all clusters."""


def _problem(status: Mapping[str, Any], outcomes: Mapping[str, ClusterOutcome]) -> str:
    """Why no round could work on any cluster."""
    ready = [] if outcomes else _conditions(status, "Ready")
    return _words(ready[0]) if ready and ready[0]["status"] != "True" else ""


def _conditions(status: Mapping[str, Any], kind: str, value: str = "") -> list[Object]:
    """The conditions of a type, with this value if one is given."""
    conditions = cast("list[Object]", status.get("conditions") or [])
    return [
        condition
        for condition in conditions
        if condition.get("type") == kind and value in ("", condition.get("status"))
    ]


def _words(condition: Object) -> str:
    return f"{condition['reason']}: {condition['message']}"


def _clusters(
    fleet: DryRunFleet, outcomes: Mapping[str, ClusterOutcome], uid: str
) -> list[ClusterPlan]:
    plans: dict[str, ClusterPlan] = {}
    for name, client in fleet.clients.items():
        plans[name] = ClusterPlan(name, _objects(client, uid))
    for name, outcome in outcomes.items():
        plan = plans.setdefault(name, ClusterPlan(name))
        plan.findings = _findings(outcome)
        plan.unchanged = _unchanged(plan, outcome)
        if outcome.state is State.UNREACHABLE:
            plan.unchanged = 0
    return [plan for _, plan in sorted(plans.items()) if _is_shown(plan, outcomes)]


def _unchanged(plan: ClusterPlan, outcome: ClusterOutcome) -> int:
    """Count the objects on record that stay as they are."""
    named = [*plan.objects, *(finding for finding in plan.findings if finding.ref)]
    named_refs = {(item.ref.kind, item.ref.namespace, item.ref.name) for item in named if item.ref}
    return sum(
        named_refs.isdisjoint({(ref.kind, ref.namespace, ref.name), (ref.kind, "", ref.name)})
        for ref in (owned.ref for owned in outcome.inventory.values())
    )


def _is_shown(plan: ClusterPlan, outcomes: Mapping[str, ClusterOutcome]) -> bool:
    return bool(plan.objects or plan.findings or plan.name in outcomes)


def _findings(outcome: ClusterOutcome) -> list[PlannedFinding]:
    findings = [
        PlannedFinding(finding.state, finding.reason, finding.message, finding.ref)
        for finding in outcome.findings
    ]
    is_reported = any(finding.reason == outcome.reason for finding in findings)
    if outcome.state is not State.APPLIED and not is_reported:
        findings.append(PlannedFinding(outcome.state, outcome.reason, outcome.message))
    return findings


def _objects(client: PlanClient, uid: str) -> list[PlannedObject]:
    paths = list(dict.fromkeys(write.path for write in client.writes))
    planned = [_object(client, path, uid) for path in paths]
    return [item for item in planned if item is not None]


def _object(client: PlanClient, path: str, uid: str) -> PlannedObject | None:
    """Plan one object; None for those on the hub that only record the rollout."""
    before, after = client.before.get(path), client.after(path)
    tree = after or before
    if tree is None or not (_is_made_namespace(before, tree) or _is_owned(before, after, uid)):
        return None
    action = _action(client, path, before, after, uid)
    is_diff = action in (Action.CHANGE, Action.RECREATE) and before and after
    lines = diff(before, after) if is_diff and before and after else []
    return PlannedObject(_reference(tree), action, lines, path not in client.unchecked)


def _is_made_namespace(before: Object | None, tree: Object) -> bool:
    """Whether it is made for the objects in it, and so has no mark (rule D10)."""
    return before is None and tree["kind"] == "Namespace"


def _is_owned(before: Object | None, after: Object | None, uid: str) -> bool:
    return any(tree and is_owned_by(tree, uid) for tree in (before, after))


def _reference(tree: Object) -> ObjectRef:
    metadata = tree["metadata"]
    namespace = str(metadata.get("namespace") or "")
    return ObjectRef(tree["apiVersion"], tree["kind"], namespace, metadata["name"])


def _action(
    client: PlanClient, path: str, before: Object | None, after: Object | None, uid: str
) -> Action:
    if before is None:
        return Action.CREATE
    if after is None or after["metadata"].get("deletionTimestamp"):
        return Action.DELETE
    if any(write.path == path and write.verb == "delete" for write in client.writes):
        return Action.RECREATE
    return Action.CHANGE if is_owned_by(after, uid) else Action.RELEASE
