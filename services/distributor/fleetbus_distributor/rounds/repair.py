"""Reconciles single clusters of a MultiClusterResource, after something happened there (rule D11).

They are compared and corrected, and no other cluster is asked. Whatever concerns all of them, an
edit, a change of the fleet, a deletion, is left to the round for all, which such changes trigger by
themselves.

The repair of one cluster (`repair`) may run at the same time as the round for all, in another
process. So it creates and prunes nothing and records nothing: what exists is updated under its UID,
which cannot bring back what the other has just deleted (rule D2). What is missing is noted and
triggers the round for all, which alone creates it there (`create_missing`): rounds of one
MultiClusterResource run one after the other. A corrected cluster is compared once more, because the
spec may have been edited meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fleetbus_distributor.hub import status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.plan import intent
from fleetbus_distributor.render.draft import Draft
from fleetbus_distributor.render.spec import DriftPolicy, Spec
from fleetbus_distributor.rollout.changes import changes_of
from fleetbus_distributor.rollout.rollouts import HEALTH_POLL, Progress
from fleetbus_distributor.rounds.observe import observe_outcomes
from fleetbus_distributor.rounds.round import Round, Work
from fleetbus_distributor.targets.outcome import ClusterOutcome, State, earliest
from fleetbus_distributor.targets.target import SOON

_UNFINISHED = (State.HELD, State.DELETING)


async def repair(round_: Round, document: Document, spec: Spec, cluster: str) -> timedelta | None:
    """Correct one cluster, and note what is missing there.

    Args:
        round_: the round, with the intent as it is on record.
        document: the MultiClusterResource, read live.
        spec: its spec; the round for all has applied this generation.
        cluster: a member of the fleet.

    Returns:
        When to retry, or None.

    Raises:
        KubeError: the hub refused a write.
        StoreError: what is missing could not be noted.
    """
    draft, outcomes = await _correct(round_, document, spec, [cluster], may_create=False)
    if any(one.lacks_objects for one in outcomes):
        await round_.missing.note(round_.owner.uid, cluster)
        await round_.requeue(round_.owner, "", timedelta())
        return None
    rollout, wait = await _report(round_, document, draft, outcomes, lets_notes_first=True)
    if wait is not None:
        await round_.missing.note(round_.owner.uid, cluster)
        await round_.requeue(round_.owner, "", wait)
    retry = HEALTH_POLL if rollout and cluster in rollout.polled else None
    for one in outcomes:
        retry = earliest(retry, earliest(one.retry, SOON if one.changes else None))
    return retry


async def create_missing(
    round_: Round, document: Document, spec: Spec, clusters: Collection[str]
) -> timedelta | None:
    """Correct some clusters, and create what is missing there.

    It replaces a round for all clusters, so the caller ensures that none runs.

    Args:
        round_: the round, with the intent as it is on record.
        document: the MultiClusterResource, read live.
        spec: its spec; the round for all has applied this generation.
        clusters: where objects were missing; some may have left the fleet.

    Returns:
        When to try again, because it is too early to write the status once more; or None.

    Raises:
        KubeError: the hub refused a write.
    """
    draft, outcomes = await _correct(round_, document, spec, clusters, may_create=True)
    _, wait = await _report(round_, document, draft, outcomes)
    for one in outcomes:
        if one.retry is not None:
            await round_.requeue(round_.owner, one.name, one.retry)
    return wait


async def _correct(
    round_: Round, document: Document, spec: Spec, clusters: Collection[str], *, may_create: bool
) -> tuple[Draft, list[ClusterOutcome]]:
    members = [info for info in round_.fleet.clusters() if info.name in clusters]
    draft = await round_.draft(spec, members)
    work: dict[str, Work] = {}
    for name in draft.objects:
        if _is_on_record(round_, draft, name):
            revision = draft.revisions[name]
            is_same = status.entry_of(document.status, name).revision == revision
            corrects = spec.policy.drift is DriftPolicy.CORRECT
            work[name] = Work(
                draft.objects[name],
                revision=revision,
                only_compare=is_same and not corrects,
                is_same=is_same,
                may_create=may_create,
            )
    outcomes = await round_.run(work, _no_progress)
    return draft, [_after(document, one, len(draft.wanted[one.name])) for one in outcomes]


def _after(document: Document, outcome: ClusterOutcome, wanted: int) -> ClusterOutcome:
    before = status.entry_of(document.status, outcome.name)
    outcome = status.keep_revision(outcome, before.revision)
    if before.state in _UNFINISHED and len(outcome.inventory) > wanted:
        # Pending deletions there are up to the round for all.
        outcome.add(before.state, before.reason, before.message, None)
    return outcome


async def _report(
    round_: Round,
    document: Document,
    draft: Draft,
    outcomes: Sequence[ClusterOutcome],
    *,
    lets_notes_first: bool = False,
) -> tuple[Progress | None, timedelta | None]:
    """Write the status, unless it is too early.

    Returns:
        The rollout as it is afterwards, and how long to wait before the status can be written.
    """
    rollout = begun = round_.rollout
    if not outcomes:
        return rollout, None
    if rollout is not None:
        rollout = observe_outcomes(rollout, draft, outcomes, is_whole=False)
    round_.pace.add_corrections(round_.owner.uid, outcomes)
    old = document.status
    inventory = {**round_.inventory, **{one.name: one.inventory for one in outcomes}}
    bases = intent.read_bases(old)
    tree = rollout.tree if rollout else None
    new = status.with_clusters(old, document.generation, outcomes, inventory, bases, rollout=tree)
    if status.is_changed(new, old):
        wait = await round_.pace.wait(round_.owner.uid, lets_notes_first=lets_notes_first)
        if wait is not None:
            round_.pace.keep_corrections(round_.owner.uid, outcomes)
            await round_.announce(document, [_only_done(one, old) for one in outcomes], old)
            return round_.rollout, wait
    await document.write_status(new)
    round_.pace.drop_corrections(round_.owner.uid, outcomes)
    await round_.announce(document, outcomes, old)
    if begun is not None and rollout is not None:
        await round_.announce.rollout(document, changes_of(begun.state, rollout.state))
    if any(intent.outdated_keys(one.inventory) != _outdated(round_, one.name) for one in outcomes):
        await round_.requeue(round_.owner, "", SOON)  # that round plans the replacements
    if rollout is not None and rollout.is_changed:
        # Only the round for all clusters opens a wave, or asks for votes.
        after = rollout.next_round
        if after is not None:
            await round_.requeue(round_.owner, "", after)
    return rollout, None


def _only_done(outcome: ClusterOutcome, old: Mapping[str, Any]) -> ClusterOutcome:
    """Keep the state on record: a new one is announced once the status shows it."""
    before = status.entry_of(old, outcome.name)
    return replace(
        outcome,
        state=before.state,
        reason=before.reason,
        message=before.message,
        findings=[],
    )


def _outdated(round_: Round, cluster: str) -> set[intent.Key]:
    return intent.outdated_keys(round_.inventory.get(cluster, {}))


def _is_on_record(round_: Round, draft: Draft, cluster: str) -> bool:
    recorded = round_.inventory.get(cluster, {})
    return all(ref.key in recorded for ref in draft.wanted[cluster])


async def _no_progress(_outcomes: Sequence[ClusterOutcome]) -> None:
    """Wait for a slow cluster: no other cluster's status depends on it."""
