"""Rules P2 to P6 in plain Python: what apply.lua must do, written to be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from fleetbus_proto.events import AuditPage, EpochEnd, Event

Rank = tuple[int, int]
NEVER: Rank = (-1, -1)


@dataclass
class Row:
    """An object (`L`) or a tombstone (`D`, or `S` when it only left a selection)."""

    state: str
    version: int
    incarnation: int
    uid: str
    body: bytes
    marks: dict[str, Rank] = field(default_factory=dict[str, Rank])


@dataclass
class Scope:
    incarnation: int = 0
    floor: int = -1
    completed: Rank = NEVER
    counts: dict[Rank, int] = field(default_factory=dict[Rank, int])
    ends: dict[Rank, int] = field(default_factory=dict[Rank, int])


@dataclass
class Suspicion:
    """An audit with the keys that differed from it."""

    page: AuditPage
    names: set[str]


class SnapshotModel:
    """One resource of one cluster."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.scopes: dict[str, Scope] = {}
        self.completed: list[tuple[str, int, Rank]] = []
        """(scope, incarnation, rank) of every epoch that became complete, in order."""
        self.audits: dict[str, Suspicion] = {}
        """Audits that are not evaluated yet, by scope."""

    def apply(self, event: Event) -> str:
        scope = self._enter(event)
        if event.incarnation.number < scope.incarnation:
            return "stale"
        rank, listed = _rank(event), event.verb is Verb.LISTED
        if listed and (rank[0] < scope.floor or rank < scope.completed):
            return "stale"
        row = self.rows.get(event.name)
        if row is not None and event.incarnation.number < row.incarnation:
            return "stale"
        return self._merge(event, scope, row, rank if listed else None)

    def end(self, marker: EpochEnd) -> tuple[bool, str]:
        """Whether the epoch is complete, and the outcome."""
        scope, rank = self._enter(marker), _rank(marker)
        if marker.incarnation.number < scope.incarnation or rank < scope.completed:
            return False, "stale"
        if rank == scope.completed:
            return True, "same"
        scope.ends[rank] = marker.count
        self._complete(marker.scope, scope, rank)
        return scope.completed == rank, "applied"

    def candidates(self, scope_name: str, incarnation: int, rank: Rank) -> set[str]:
        return {
            name
            for name, row in self.rows.items()
            if row.state == "L"
            and scope_name in row.marks
            and (
                row.incarnation < incarnation
                or (
                    row.incarnation == incarnation
                    and row.marks[scope_name] < rank
                    and row.version < rank[0]
                )
            )
            and not any(
                self._may_hold(row, row.marks[other], scope)
                for other, scope in self.scopes.items()
                if other in row.marks and other != scope_name
            )
        }

    def _may_hold(self, row: Row, mark: Rank, scope: Scope) -> bool:
        """Whether another scope has not listed since without the object (W6)."""
        if row.incarnation > scope.incarnation or scope.completed == NEVER:
            return True
        is_older = row.incarnation < scope.incarnation
        return mark >= scope.completed or (not is_older and row.version >= scope.completed[0])

    def collect(self) -> int:
        spent = [name for name, row in self.rows.items() if self._is_spent(row)]
        for name in spent:
            del self.rows[name]
        return len(spent)

    def audit(self, page: AuditPage) -> bool:
        """Whether the snapshot agrees with the API server at once; then the floor rises (P15)."""
        suspicion = self.audits.get(page.scope)
        if not self.is_comparable(page):
            return False
        if suspicion is not None and _age(page) < _age(suspicion.page):
            return False
        if suspicion is None or _age(page) > _age(suspicion.page):
            suspicion = self.audits[page.scope] = Suspicion(page, set())
        suspicion.names |= self.differences(page)
        if not suspicion.names:
            del self.audits[page.scope]
            self.raise_floor(page)
        return not suspicion.names

    def evaluate(self, scope: str) -> None:
        """Look again at what differed; if nothing does any more the floor rises."""
        suspicion = self.audits.pop(scope, None)
        if suspicion is None or not self.is_comparable(suspicion.page):
            return
        if not suspicion.names & self.differences(suspicion.page):
            self.raise_floor(suspicion.page)

    def raise_floor(self, page: AuditPage) -> None:
        self.scopes[page.scope].floor = int(page.epoch.resource_version)

    def differences(self, page: AuditPage) -> set[str]:
        version = int(page.epoch.resource_version)
        listed = {name: (uid, int(version_text)) for _, name, uid, version_text in page.items}
        differing = {name for name in listed if self._is_wrong(page, name, *listed[name])}
        for name, row in self.rows.items():
            if row.state == "L" and page.scope in row.marks and name not in listed:
                is_older = row.incarnation < page.incarnation.number
                is_same = row.incarnation == page.incarnation.number
                if is_older or (is_same and row.version < version):
                    differing.add(name)
        return differing

    def _is_wrong(self, page: AuditPage, name: str, uid: str, version: int) -> bool:
        row = self.rows.get(name)
        if row is None or row.incarnation < page.incarnation.number:
            return True
        if row.incarnation > page.incarnation.number:
            return False
        if row.version > int(page.epoch.resource_version):
            return False  # it has changed since
        is_other = bool(uid and row.uid) and uid != row.uid
        return row.state != "L" or row.version != version or is_other

    def is_comparable(self, page: AuditPage) -> bool:
        scope = self.scopes.get(page.scope)
        return (
            scope is not None
            and scope.incarnation == page.incarnation.number
            and scope.completed != NEVER
            and scope.floor <= int(page.epoch.resource_version)
        )

    def drop_scope(self, scope_name: str) -> int:
        self.audits.pop(scope_name, None)
        removed = 0
        for name, row in list(self.rows.items()):
            if row.marks.pop(scope_name, None) is not None and not row.marks:
                removed += row.state == "L"
                del self.rows[name]
        self.scopes.pop(scope_name, None)
        return removed

    def _enter(self, source: Event | EpochEnd) -> Scope:
        scope = self.scopes.setdefault(source.scope, Scope())
        if source.incarnation.number > scope.incarnation:
            self.scopes[source.scope] = scope = Scope(source.incarnation.number)
        return scope

    def _merge(self, event: Event, scope: Scope, row: Row | None, listed: Rank | None) -> str:
        current = row if row is not None and row.incarnation == event.incarnation.number else None
        marks = current.marks if current else {}
        is_raised = listed is not None and marks.get(event.scope, NEVER) < listed
        # P4, also for tombstones: the list at the floor would have held the object.
        is_live = row is not None and row.state == "L"
        is_low = int(event.resource_version) <= scope.floor
        is_below_floor = listed is None and not is_live and is_low
        outcome = self._evaluate(event, current, is_raised=is_raised, is_below_floor=is_below_floor)
        if listed is not None and is_raised:
            marks[event.scope] = listed
        elif outcome != "stale":
            marks.setdefault(event.scope, NEVER)
        if outcome == "applied":
            self._store(event, row, marks)
        if listed is not None and is_raised and listed > scope.completed:
            scope.counts[listed] = scope.counts.get(listed, 0) + 1
            self._complete(event.scope, scope, listed)
        return outcome

    def _evaluate(
        self, event: Event, row: Row | None, *, is_raised: bool, is_below_floor: bool
    ) -> str:
        """`row` is the stored row of the same incarnation."""
        version = int(event.resource_version)
        if row is not None and self._shows_no_deletion(event, row):
            return "applied"
        if row is None or version > row.version:
            is_refuted = row is not None and self._is_refuted(event, row)
            return "stale" if is_below_floor or is_refuted else "applied"
        if version < row.version:
            return "stale"
        if event.verb is Verb.DELETED:
            return "same"
        if row.state == "S":
            return "same" if is_below_floor else "applied"
        refreshed = row.state == "L" and is_raised and (event.object or b"") != row.body
        return "applied" if refreshed else "same"

    def _shows_no_deletion(self, event: Event, row: Row) -> bool:
        """A list that is later than the deletion, and holds the object."""
        is_listed = event.verb is Verb.LISTED
        return is_listed and row.state == "D" and _rank(event)[0] > row.version

    def _is_refuted(self, event: Event, row: Row) -> bool:
        """A deletion after which a list has held the object."""
        version_seen = row.marks.get(event.scope, NEVER)[0]
        return (
            _code(event) == "D" and row.state == "L" and version_seen > int(event.resource_version)
        )

    def _store(self, event: Event, row: Row | None, marks: dict[str, Rank]) -> None:
        is_live = event.verb is not Verb.DELETED
        body = event.object or b""
        if not is_live and not body and row is not None:
            body = row.body
        number = event.incarnation.number
        version = int(event.resource_version)
        self.rows[event.name] = Row(_code(event), version, number, event.uid, body, marks)

    def _complete(self, name: str, scope: Scope, rank: Rank) -> None:
        if rank > scope.completed and scope.counts.get(rank, 0) == scope.ends.get(rank, -1):
            scope.completed, scope.floor = rank, max(scope.floor, rank[0])
            self.completed.append((name, scope.incarnation, rank))

    def _is_spent(self, row: Row) -> bool:
        if row.state == "L":
            return False
        for name, scope in self.scopes.items():
            if name not in row.marks:
                continue
            if scope.incarnation < row.incarnation:
                return False
            if scope.incarnation > row.incarnation:
                if scope.completed == NEVER:
                    return False
            elif row.version > scope.floor or row.marks[name] > scope.completed:
                return False
        return True


def _code(event: Event) -> str:
    """The state that an event brings."""
    if event.verb is not Verb.DELETED:
        return "L"
    return "S" if event.left_selection else "D"


def _age(page: AuditPage) -> tuple[int, int, int]:
    return (page.incarnation.number, int(page.epoch.resource_version), page.epoch.id)


def _rank(source: Event | EpochEnd) -> Rank:
    return (int(source.epoch.resource_version), source.epoch.id)
