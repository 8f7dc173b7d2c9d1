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
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from fleetbus_distributor.announce.announce import Announce
from fleetbus_distributor.hub import entries, status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.intent import Inventory
from fleetbus_distributor.render.draft import Draft, Renderer
from fleetbus_distributor.render.spec import Spec
from fleetbus_distributor.rollout.changes import changes_of
from fleetbus_distributor.rollout.rollouts import HEALTH_POLL, Progress
from fleetbus_distributor.rounds.execute import Executor
from fleetbus_distributor.rounds.missing_objects import MissingObjects
from fleetbus_distributor.rounds.round import Requeue, Round, Work, work_of
from fleetbus_distributor.rounds.status_pace import StatusPace
from fleetbus_distributor.targets.outcome import ClusterOutcome, State, earliest
from fleetbus_distributor.targets.target import SOON

_UNFINISHED = (State.HELD, State.DELETING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """Corrects single clusters, with what all rounds of the process share."""

    renderer: Renderer
    executor: Executor
    missing: MissingObjects
    pace: StatusPace
    announce: Announce
    requeue: Requeue

    async def repair(
        self,
        round_: Round,
        document: Document,
        spec: Spec,
        rollout: Progress | None,
        cluster: str,
    ) -> timedelta | None:
        """Correct one cluster, and note what is missing there.

        Args:
            round_: the facts of the round.
            document: the MultiClusterResource, read live.
            spec: its spec; the round for all has applied this generation.
            rollout: which revision each cluster gets; None if all get the newest.
            cluster: a member of the fleet.

        Returns:
            When to retry, or None.

        Raises:
            KubeError: the hub refused a write.
            StoreError: what is missing could not be noted.
        """
        draft = await self._draft(round_, spec, rollout, [cluster])
        outcomes = await self._correct(round_, document, spec, draft, may_create=False)
        if any(outcome.lacks_objects for outcome in outcomes):
            await self._leave_to_all(round_, cluster, timedelta())
            return None
        rollout, wait = await self._report(
            round_, document, draft, outcomes, rollout, lets_notes_first=True
        )
        if wait is not None:
            await self._leave_to_all(round_, cluster, wait)
        return retry_after(outcomes, is_polled=rollout is not None and cluster in rollout.polled)

    async def create_missing(
        self,
        round_: Round,
        document: Document,
        spec: Spec,
        rollout: Progress | None,
        clusters: Collection[str],
    ) -> timedelta | None:
        """Correct some clusters, and create what is missing there.

        It replaces a round for all clusters, so the caller ensures that none runs.

        Args: as `repair`; some of the clusters may have left the fleet.

        Returns:
            When to try again, because it is too early to write the status once more; or None.

        Raises:
            KubeError: the hub refused a write.
        """
        draft = await self._draft(round_, spec, rollout, clusters)
        outcomes = await self._correct(round_, document, spec, draft, may_create=True)
        _, wait = await self._report(round_, document, draft, outcomes, rollout)
        for outcome in outcomes:
            if outcome.retry is not None:
                await self.requeue(round_.owner, outcome.name, outcome.retry)
        return wait

    async def _leave_to_all(self, round_: Round, cluster: str, wait: timedelta) -> None:
        await self.missing.note(round_.owner.uid, cluster)
        await self.requeue(round_.owner, "", wait)

    async def _draft(
        self, round_: Round, spec: Spec, rollout: Progress | None, clusters: Collection[str]
    ) -> Draft:
        members = [info for info in round_.fleet.clusters() if info.name in clusters]
        behind = rollout.specs if rollout else None
        return await self.renderer.draft(spec, members, round_.fleet.hub, behind)

    async def _correct(
        self, round_: Round, document: Document, spec: Spec, draft: Draft, *, may_create: bool
    ) -> list[ClusterOutcome]:
        """Bring what is on record to what is wanted; with the revision that stays on record."""
        before = document.status
        work = corrections(
            draft, spec, round_.inventory, entries.revisions(before), may_create=may_create
        )
        return [
            as_reported(outcome, entries.read_entry(before, outcome.name), draft)
            for outcome in await self.executor.run(round_, work)
        ]

    async def _report(
        self,
        round_: Round,
        document: Document,
        draft: Draft,
        outcomes: Sequence[ClusterOutcome],
        begun: Progress | None,
        *,
        lets_notes_first: bool = False,
    ) -> tuple[Progress | None, timedelta | None]:
        """Write the status, unless it is too early.

        Returns:
            The rollout as it is afterwards, and how long to wait before the status can be written.
        """
        if not outcomes:
            return begun, None
        owner = round_.owner
        rollout = begun.observed(draft, outcomes, is_whole=False) if begun else None
        self.pace.add_corrections(owner.uid, outcomes)
        old = document.status
        tree = rollout.tree if rollout else None
        new = status.with_clusters(old, document.generation, outcomes, round_.inventory, tree)
        if status.is_changed(new, old):
            wait = await self.pace.wait(owner.uid, lets_notes_first=lets_notes_first)
            if wait is not None:
                self.pace.keep_corrections(owner.uid, outcomes)
                await self.announce(document, [only_done(each, old) for each in outcomes], old)
                return begun, wait
        await document.write_status(new)
        self.pace.drop_corrections(owner.uid, outcomes)
        await self.announce(document, outcomes, old)
        if begun is not None and rollout is not None:
            await self.announce.rollout(document, changes_of(begun.state, rollout.state))
        for wait in waits_for_all(round_.inventory, outcomes, rollout):
            await self.requeue(owner, "", wait)
        return rollout, None


def corrections(
    draft: Draft,
    spec: Spec,
    inventory: Inventory,
    applied: Mapping[str, str],
    *,
    may_create: bool,
) -> dict[str, Work]:
    """Decide which clusters are corrected: those where all that is wanted is on record (pure)."""
    return {
        name: work_of(
            name,
            draft,
            spec,
            applied=applied.get(name, ""),
            recorded=inventory.get(name, {}),
            may_create=may_create,
        )
        for name in draft.objects
        if all(ref.key in inventory.get(name, {}) for ref in draft.wanted[name])
    }


def as_reported(outcome: ClusterOutcome, entry: ClusterOutcome, draft: Draft) -> ClusterOutcome:
    """The outcome of a corrected cluster beside the entry that is on record for it (pure)."""
    outcome = entries.keep_revision(outcome, entry.revision)
    if entry.state in _UNFINISHED and len(outcome.inventory) > len(draft.wanted[outcome.name]):
        # Pending deletions there are up to the round for all.
        outcome = replace(outcome)
        outcome.add(entry.state, entry.reason, entry.message, None)
    return outcome


def retry_after(outcomes: Sequence[ClusterOutcome], *, is_polled: bool) -> timedelta | None:
    """Decide when a repaired cluster is looked at again (pure)."""
    retry = HEALTH_POLL if is_polled else None
    for outcome in outcomes:
        retry = earliest(retry, earliest(outcome.retry, SOON if outcome.changes else None))
    return retry


def waits_for_all(
    inventory: Inventory, outcomes: Sequence[ClusterOutcome], rollout: Progress | None
) -> list[timedelta]:
    """Decide when the round for all clusters is to run, for what only that does (pure).

    It plans the replacement of objects, opens waves and reads votes.
    """
    outdated = any(
        intent.outdated_keys(each.inventory) != intent.outdated_keys(inventory.get(each.name, {}))
        for each in outcomes
    )
    waits = [SOON] if outdated else []
    if rollout is not None and rollout.is_changed and rollout.next_round is not None:
        waits.append(rollout.next_round)
    return waits


def only_done(outcome: ClusterOutcome, old: Mapping[str, Any]) -> ClusterOutcome:
    """Keep the state on record: a new one is announced once the status shows it."""
    entry = entries.read_entry(old, outcome.name)
    return replace(
        outcome, state=entry.state, reason=entry.reason, message=entry.message, findings=[]
    )
