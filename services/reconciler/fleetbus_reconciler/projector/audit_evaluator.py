"""What audits find, and what follows: the resource is listed anew (rule P15).

No row changes here, and nothing is deleted: an epoch decides, with all the care it takes.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, NoReturn

import structlog
from prometheus_client import Counter

from fleetbus.snapshot.audit import Audit, Audits, Finding, Kind, Taken, Verdict
from fleetbus_proto.events import AuditPage, Heartbeat
from fleetbus_proto.resources import Resource
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from fleetbus_reconciler.projector.tombstones import TombstoneCollector

log = structlog.get_logger()

_TICK: Final = timedelta(seconds=1)

AUDITS: Final = Counter(
    "fleetbus_audits", "Complete audits that were compared with the snapshot.", ["cluster"]
)
FINDINGS: Final = Counter(
    "fleetbus_audit_findings",
    "Objects of which the snapshot was wrong without any sign of it.",
    ["cluster", "resource", "kind"],
)


class AuditJudge:
    """Takes the pages of audits, and says what they have found.

    Args:
        audits: those that are under way.
        state: asks for epochs, and tells readers.
        tombstones: told of floors that have risen.
        wait: how long a difference must last once no event of before is on its way.
    """

    def __init__(
        self,
        *,
        audits: Audits,
        state: FleetState,
        tombstones: TombstoneCollector,
        wait: timedelta,
    ) -> None:
        self._audits = audits
        self._state = state
        self._tombstones = tombstones
        self._wait = wait
        # Where the last audit found what no list of the same history can mend.
        self._ahead: set[tuple[str, str, str]] = set()

    async def take(self, page: AuditPage) -> bool:
        """Compare a page with the snapshot; False if there is nothing to compare it with.

        Raises:
            StoreEmpty: the store was emptied.
        """
        taken = await self._audits.take(page)
        if taken is Taken.USELESS:
            return False
        for kind in Kind:  # so that the first finding is seen as a step
            FINDINGS.labels(page.cluster, page.resource_key, kind)
        if taken is Taken.CLEAN:
            AUDITS.labels(page.cluster).inc()
            self._agree(Audit.of(page))
        return True

    async def hear(self, heartbeat: Heartbeat) -> None:
        """Up to where events are on the bus.

        Raises:
            StoreEmpty: the store was emptied.
        """
        await self._audits.hear(heartbeat)

    def forget_cluster(self, cluster: str) -> None:
        """A cluster left."""
        self._ahead = {place for place in self._ahead if place[0] != cluster}
        AUDITS.remove_by_labels({"cluster": cluster})
        FINDINGS.remove_by_labels({"cluster": cluster})

    async def run(self) -> NoReturn:
        """Judge what is due, until cancelled."""
        while True:
            await asyncio.sleep(min(_TICK, self._wait / 4).total_seconds())
            try:
                async for audit in self._audits.due(self._wait):
                    verdict = await self._audits.judge(audit)
                    if verdict is not None:
                        await self._conclude(audit, verdict)
            except Exception as e:  # noqa: BLE001 -- Redis or NATS is away: the next turn does it
                log.warning("audits_not_judged", error=str(e))

    async def _conclude(self, audit: Audit, verdict: Verdict) -> None:
        is_clean = not any(verdict.counts.values())
        if not is_clean:
            await self._repair(audit, verdict)
        # Only now: a crash before this asks once more instead of never.
        if not await self._audits.end(audit, is_clean=is_clean):
            return
        if is_clean:
            self._agree(audit)
        AUDITS.labels(audit.cluster).inc()
        for kind, count in verdict.counts.items():
            FINDINGS.labels(audit.cluster, audit.resource_key, kind).inc(count)
        if not is_clean:
            log.error(
                "audit_found_differences",
                cluster=audit.cluster,
                resource=audit.resource_key,
                scope=audit.scope,
                **verdict.counts,
                examples=[_told(finding) for finding in verdict.examples],
            )

    def _agree(self, audit: Audit) -> None:
        self._ahead.discard(audit[:3])
        self._tombstones.note(audit.cluster, audit.resource_key)

    async def _repair(self, audit: Audit, verdict: Verdict) -> None:
        found = ", ".join(f"{count} {kind}" for kind, count in verdict.counts.items() if count)
        group, _, plural = audit.resource_key.partition("/")
        resource = Resource(group, "", plural)
        # W12: a restored etcd that has passed its old versions. The same history lists nothing
        # that is newer than what we hold; so if a list did not help the next one is a new one's.
        is_of_another_history = verdict.ahead > 0 and audit[:3] in self._ahead
        if verdict.ahead:
            self._ahead.add(audit[:3])
        reason = f"an audit found {found}"
        await self._state.degrade(audit, reason)
        await self._state.want(
            audit.cluster,
            resource,
            reason,
            audit=audit.id,
            new_history=is_of_another_history,
        )


def _told(finding: Finding) -> str:
    return (
        f"{finding.kind} {finding.key}: listed {finding.listed or '-'}, held {finding.held or '-'}"
    )
