"""Evaluates audits, and requests a new list of a resource where one found differences (rule P15).

No row changes here, and nothing is deleted: that is up to the list, whose sweep has its own guards.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, NoReturn

import structlog
from prometheus_client import Counter

from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.audit import Audit, AuditDecision, Audits, Finding, FindingKind, PageResult
from fleetbus_proto.events import AuditPage, Heartbeat
from fleetbus_proto.resources import Resource
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from fleetbus_reconciler.projector.tombstones import TombstoneCollector

log = structlog.get_logger()

_TICK: Final = timedelta(seconds=1)

AUDITS: Final = Counter(
    "fleetbus_audits", "Complete audits that were compared with the snapshot.", ["cluster"]
)
FINDINGS: Final = Counter(
    "fleetbus_audit_findings",
    "Objects of which the snapshot was wrong, found by audits.",
    ["cluster", "resource", "kind"],
)


class AuditEvaluator:
    """Compares the pages of audits with the snapshot, and follows up on what they find.

    Args:
        audits: the audits under way.
        state: marks resources as degraded.
        resyncs: requests lists.
        tombstones: notified of floors that have risen.
        wait: how long a difference must last once all older events have been read.
    """

    def __init__(
        self,
        *,
        audits: Audits,
        state: FleetState,
        resyncs: ResyncRequests,
        tombstones: TombstoneCollector,
        wait: timedelta,
    ) -> None:
        self._audits = audits
        self._state = state
        self._resyncs = resyncs
        self._tombstones = tombstones
        self._wait = wait
        self._log_once = LogOnce()
        # Where the last audit found differences that no list of the same history can repair.
        self._ahead: set[tuple[str, str, str]] = set()

    async def take(self, page: AuditPage) -> bool:
        """Compare a page with the snapshot; False if there is nothing to compare it with.

        Raises:
            StoreEmpty: the store was emptied.
        """
        taken = await self._audits.add_page(page)
        if taken is PageResult.IGNORED:
            return False
        for kind in FindingKind:  # so that the first finding is seen as a step
            FINDINGS.labels(page.cluster, page.resource_key, kind)
        if taken is PageResult.CLEAN:
            AUDITS.labels(page.cluster).inc()
            self._conclude_clean(Audit.of(page))
        return True

    async def receive(self, heartbeat: Heartbeat) -> None:
        """Note up to where a watcher has published events.

        Raises:
            StoreEmpty: the store was emptied.
        """
        await self._audits.receive(heartbeat)

    def forget_cluster(self, cluster: str) -> None:
        """Drop the metrics and findings of a cluster that left."""
        self._ahead = {place for place in self._ahead if place[0] != cluster}
        AUDITS.remove_by_labels({"cluster": cluster})
        FINDINGS.remove_by_labels({"cluster": cluster})

    async def run(self) -> NoReturn:
        """Evaluate what is due, until cancelled."""
        while True:
            await asyncio.sleep(min(_TICK, self._wait / 4).total_seconds())
            try:
                await self._evaluate_due()
            except Exception as e:  # noqa: BLE001 -- Redis or NATS is away: try again
                if self._log_once.should_log(str(e)):
                    log.warning("audits_not_evaluated", error=str(e))

    async def _evaluate_due(self) -> None:
        async for audit in self._audits.due(self._wait):
            decision = await self._audits.evaluate(audit)
            if decision is not None:
                await self._conclude(audit, decision)

    async def _conclude(self, audit: Audit, decision: AuditDecision) -> None:
        is_clean = not any(decision.counts.values())
        if not is_clean:
            await self._repair(audit, decision)
        # Only now: a crash before this requests a list twice instead of never.
        if not await self._audits.end(audit, is_clean=is_clean):
            return
        if is_clean:
            self._conclude_clean(audit)
        AUDITS.labels(audit.cluster).inc()
        for kind, count in decision.counts.items():
            FINDINGS.labels(audit.cluster, audit.resource_key, kind).inc(count)
        if not is_clean:
            log.error(
                "audit_found_differences",
                cluster=audit.cluster,
                resource=audit.resource_key,
                scope=audit.scope,
                **decision.counts,
                examples=[_describe(finding) for finding in decision.examples],
            )

    def _conclude_clean(self, audit: Audit) -> None:
        self._ahead.discard(audit[:3])
        self._tombstones.note_risen_floor(audit.cluster, audit.resource_key)

    async def _repair(self, audit: Audit, decision: AuditDecision) -> None:
        counts = ", ".join(f"{count} {kind}" for kind, count in decision.counts.items() if count)
        group, _, plural = audit.resource_key.partition("/")
        resource = Resource(group, "", plural)
        # A restored etcd that has passed its old versions lists nothing that is newer than what we
        # hold; so if a list did not help, the next one starts a new history (rule W12).
        is_of_another_history = decision.ahead > 0 and audit[:3] in self._ahead
        if decision.ahead:
            self._ahead.add(audit[:3])
        reason = f"an audit found {counts}"
        await self._state.mark_degraded(audit, reason)
        await self._resyncs.request(
            audit.cluster,
            resource,
            reason,
            audit=audit.id,
            new_history=is_of_another_history,
        )


def _describe(finding: Finding) -> str:
    return (
        f"{finding.kind} {finding.key}: listed {finding.listed or '-'}, held {finding.held or '-'}"
    )
