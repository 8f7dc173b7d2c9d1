"""Some clusters of a MultiClusterResource, after something happened there (rule D11).

They are compared and put right, and nothing is asked of any other cluster. Whatever concerns all of
them, an edit, a change of the fleet, a deletion, is left to the round for all, which these wake by
themselves.

A look at one cluster (`repair`) may run at the same time as the round for all, in another process.
So it creates and prunes nothing and puts nothing on record: what exists is updated under its UID,
which cannot bring back what the other has just deleted (rule D2). What is missing is noted and
wakes the round for all, which creates it there alone (`create_missing`): rounds of one
MultiClusterResource run one after the other. What was changed is looked at once more, because the
spec may have been edited meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.kube_events import notices_of
from fleetbus_distributor.plan import intent
from fleetbus_distributor.render.draft import Draft
from fleetbus_distributor.render.spec import DriftPolicy, Spec
from fleetbus_distributor.rounds.round import Round, Work
from fleetbus_distributor.targets.outcome import ClusterOutcome, State, earliest
from fleetbus_distributor.targets.target import SOON

_UNFINISHED = (State.HELD, State.DELETING)


async def repair(turn: Round, document: Document, spec: Spec, cluster: str) -> timedelta | None:
    """Bring one cluster in line, and note what is missing there.

    Args:
        turn: the round, with the intent as it is on record.
        document: the MultiClusterResource, read live.
        spec: its spec; the round for all has followed this generation.
        cluster: a member of the fleet.

    Returns:
        When something outside may have changed there, or None.

    Raises:
        KubeError: the hub refused a write.
        StoreError: what is missing could not be noted.
    """
    outcomes = await _bring_in_line(turn, document, spec, [cluster], may_create=False)
    if any(one.lacks_objects for one in outcomes):
        await turn.missing.note(turn.owner.uid, cluster)
        await turn.wake(turn.owner, "", timedelta())
        return None
    await _tell(turn, document, outcomes)
    retry: timedelta | None = None
    for one in outcomes:
        retry = earliest(one.retry, SOON if one.changes else None)
    return retry


async def create_missing(
    turn: Round, document: Document, spec: Spec, clusters: Collection[str]
) -> None:
    """Bring some clusters in line, and create what is missing there.

    It takes the place of a round for all clusters, so the caller makes sure that none runs.

    Args:
        turn: the round, with the intent as it is on record.
        document: the MultiClusterResource, read live.
        spec: its spec; the round for all has followed this generation.
        clusters: where objects were missing; of those that have left nothing is known.

    Raises:
        KubeError: the hub refused a write.
    """
    outcomes = await _bring_in_line(turn, document, spec, clusters, may_create=True)
    await _tell(turn, document, outcomes)
    for one in outcomes:
        if one.retry is not None:
            await turn.wake(turn.owner, one.name, one.retry)


async def _bring_in_line(
    turn: Round, document: Document, spec: Spec, clusters: Collection[str], *, may_create: bool
) -> list[ClusterOutcome]:
    members = [info for info in turn.fleet.clusters() if info.name in clusters]
    draft = await turn.drafts.draft(spec, members, turn.fleet.hub)
    work: dict[str, Work] = {}
    for name in draft.objects:
        if _is_on_record(turn, draft, name):
            revision = draft.revisions[name]
            is_same = status.entry_of(document.status, name).revision == revision
            corrects = spec.policy.drift is DriftPolicy.CORRECT
            work[name] = Work(
                draft.objects[name],
                revision=revision,
                only_compare=is_same and not corrects,
                may_create=may_create,
            )
    outcomes = await turn.run(work, _say_nothing)
    return [_after(document, one, len(draft.wanted[one.name])) for one in outcomes]


def _after(document: Document, outcome: ClusterOutcome, wanted: int) -> ClusterOutcome:
    before = status.entry_of(document.status, outcome.name)
    outcome = status.keep_revision(outcome, before.revision)
    if before.state in _UNFINISHED and len(outcome.inventory) > wanted:
        # What is left to be deleted there is not ours to judge.
        outcome.note(before.state, before.reason, before.message, None)
    return outcome


async def _tell(turn: Round, document: Document, outcomes: Sequence[ClusterOutcome]) -> None:
    if not outcomes:
        return
    old = document.status
    inventory = {**turn.inventory, **{one.name: one.inventory for one in outcomes}}
    bases = intent.read_bases(old)
    await document.write_status(
        status.with_clusters(old, document.generation, outcomes, inventory, bases)
    )
    await document.tell(notices_of(outcomes, old))
    if any(intent.outdated(one.inventory) != _outdated(turn, one.name) for one in outcomes):
        await turn.wake(turn.owner, "", SOON)  # it plans what has to be replaced


def _outdated(turn: Round, cluster: str) -> set[intent.Key]:
    return intent.outdated(turn.inventory.get(cluster, {}))


def _is_on_record(turn: Round, draft: Draft, cluster: str) -> bool:
    recorded = turn.inventory.get(cluster, {})
    return all(ref.key in recorded for ref in draft.wanted[cluster])


async def _say_nothing(_outcomes: Sequence[ClusterOutcome]) -> None:
    """A slow cluster is waited for: nobody else's status depends on it."""
