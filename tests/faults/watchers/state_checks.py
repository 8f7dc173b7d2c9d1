"""The rules that the records of a campaign must obey; offline, and as often as one likes.

A check is a function of `Records` that yields violations; `checks.CHECKS` lists them. What is lost
with a store cannot be asked of the stream afterwards, so `Records.is_stream_whole` says whether it
was kept from the start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from faults.rig.records import MEMORY_KB, Json, Violation, settled_within
from faults.rig.settings import STORE_LOST
from faults.watchers.records import Live, Place, Records
from fleetbus_proto.versions import version_key

WINDOW_SECONDS = 120
"""The stream's duplicate window."""
_SHOWN = 5


# --- what consumers make of the stream --------------------------------------------------------


@dataclass
class Fold:
    """The last state per object, by the order of P2 and the floor of P4.

    Deletions are only what the stream calls so. With `believes_epochs` also what a complete list
    of a newer incarnation does not have is gone: what a subscriber needs whose stream lost a part.
    """

    believes_epochs: bool
    rows: dict[tuple[Place, str], tuple[Any, str, str, bool]] = field(
        default_factory=dict[tuple[Place, str], tuple[Any, str, str, bool]]
    )
    floors: dict[Place, Any] = field(default_factory=dict[Place, Any])
    marks: dict[tuple[Place, str], Any] = field(default_factory=dict[tuple[Place, str], Any])

    def take(self, message: Json) -> None:
        if message["type"] == "other":
            return
        place = (message["cluster"], message["resource"])
        if message["type"] == "end":
            self._end(place, message)
            return
        row = (place, message["key"])
        if self._is_outdated(row, message):
            return
        is_alive = message["type"] != "deleted"
        self.rows[row] = (_version(message), message["uid"], message["rv"], is_alive)

    def _is_outdated(self, row: tuple[Place, str], message: Json) -> bool:
        """Whether it says nothing new; the mark of a listed object is raised in any case."""
        version, stored = _version(message), self.rows.get(row)
        is_held = stored is not None and stored[3]
        floor = self.floors.get(row[0], (0,))
        if message["type"] == "listed":
            list_version = _rank(message)[:2]
            if list_version < floor:
                return True
            self.marks[row] = max(self.marks.get(row, (0,)), _rank(message))
            # A later list that holds the object disproves its deletion, however old the object is.
            is_disproved = stored is not None and not is_held and list_version > stored[0]
            return stored is not None and version <= stored[0] and not is_disproved
        if stored is None or not is_held:
            return version <= max(floor, stored[0] if stored is not None else (0,))
        is_refuted = message["type"] == "deleted" and version < self.marks.get(row, (0,))[:2]
        return version <= stored[0] or is_refuted

    def _end(self, place: Place, end: Json) -> None:
        floor = (end["number"], version_key(end["rank"][0]))
        self.floors[place] = max(self.floors.get(place, (0,)), floor)
        if not self.believes_epochs:
            return
        for row, (version, uid, rv, is_alive) in self.rows.items():
            is_unlisted = self.marks.get(row, (0,)) < _rank(end)
            if row[0] == place and is_alive and is_unlisted and version < floor:
                self.rows[row] = (floor, uid, rv, False)

    def live(self) -> dict[Place, Live]:
        by_place: dict[Place, Live] = defaultdict(dict)
        for (place, key), (_, uid, rv, is_alive) in self.rows.items():
            if is_alive:
                by_place[place][key] = (uid, rv)
        return by_place


def _version(message: Json) -> Any:
    return (message["number"], version_key(message["rv"]))


def _rank(message: Json) -> Any:
    version, number = message["rank"]
    return (message["number"], version_key(version), number)


def check_stream(records: Records) -> Iterator[Violation]:
    """I1 and I2 of the stream: its last state per object is that of the API servers."""
    fold = Fold(believes_epochs=not records.is_stream_whole)
    for message in records.stream:
        fold.take(message)
    yield from differences("stream", records.final, fold.live())


def check_snapshot(records: Records) -> Iterator[Violation]:
    """I1 of the snapshot."""
    yield from differences("snapshot", records.final, records.snapshot)


def differences(
    subject: str, final: dict[Place, Live], actual: dict[Place, Live]
) -> Iterator[Violation]:
    """Yield the objects that are lost, extra or outdated in one view of the clusters, by place."""
    for place in sorted({*final, *actual}):
        truth, live_objects = final.get(place, {}), actual.get(place, {})
        groups = {
            "lost": truth.keys() - live_objects.keys(),
            "extra": live_objects.keys() - truth.keys(),
            "old": {
                key for key in truth.keys() & live_objects.keys() if truth[key] != live_objects[key]
            },
        }
        for kind, names in groups.items():
            if names:
                where = " ".join(place)
                examples = [
                    f"{n!r} {truth.get(n)} {live_objects.get(n)}" for n in sorted(names)[:_SHOWN]
                ]
                yield Violation(
                    f"{subject}-{kind}",
                    f"{where}: {len(names)} objects, like {'; '.join(examples)}",
                )


def check_settled(records: Records) -> Iterator[Violation]:
    """I1: all agree soon after the last fault."""
    took, bound = records.meta["settled_seconds"], settled_within(records.meta)
    if took > bound:
        yield Violation("not-settled", f"{took:.0f} s after the last fault, not {bound:.0f} s")


# --- what is stored ---------------------------------------------------------------------------


def check_deletions(records: Records) -> Iterator[Violation]:
    """W6, W8, P6: whoever reads `deleted` can rely on it; the object was not there any more.

    After a restored etcd a version no longer says when, so such clusters are left out.
    """
    for cluster, commits in records.truth.items():
        if any(commit["type"] == "ROLLED_BACK" for commit in commits):
            continue
        ends = {c["uid"]: c["rv"] for c in commits if c["type"] == "DELETED"}
        begins = {c["uid"]: c["rv"] for c in commits if c["type"] == "ADDED"}
        false: list[str] = []
        for message in records.stream:
            if message["type"] != "deleted" or message["cluster"] != cluster:
                continue
            uid, at = message["uid"], int(message["rv"])
            if uid not in begins or at < ends.get(uid, float("inf")):
                false.append(f"{message['resource']} {message['key']!r} {uid} at {at}")
        if false:
            yield Violation("false-deletion", f"{cluster}: {len(false)}, like {false[:_SHOWN]}")


def check_deletions_sent(records: Records) -> Iterator[Violation]:
    """W24: when only the store was lost, a plain subscriber receives each deletion."""
    lost = (line for line in records.log if line["kind"] == "fault")
    if {line["fault"] for line in lost} != {STORE_LOST}:
        return
    began, ended = records.meta["began"], records.meta["ended"]
    deleted = {message["uid"] for message in records.stream if message["type"] == "deleted"}
    for cluster, commits in records.truth.items():
        gone = [
            commit
            for commit in commits
            if commit["type"] == "DELETED" and began <= _time_of(commit) <= ended
        ]
        missing = [c for c in gone if c["uid"] not in deleted]
        if missing:
            examples = [f"{c['resource']} {c['name']!r} at {c['rv']}" for c in missing[:_SHOWN]]
            text = f"{cluster}: {len(missing)} of {len(gone)} deletions, like {examples}"
            yield Violation("deletion-missing", text)


def _time_of(commit: Json) -> float:
    return datetime.fromisoformat(commit["time"]).timestamp()


def check_duplicates(records: Records) -> Iterator[Violation]:
    """B3, W15: inside the duplicate window nothing is stored twice under one id."""
    stored: dict[str, datetime] = {}
    doubles: list[str] = []
    for message in records.stream:
        if not message["id"]:
            continue
        at = datetime.fromisoformat(message["at"])
        before = stored.get(message["id"])
        if before is not None and (at - before).total_seconds() < WINDOW_SECONDS:
            doubles.append(f"{message['id']} at {before.time()} and {at.time()}")
        stored[message["id"]] = at
    if doubles:
        yield Violation("stored-twice", f"{len(doubles)} messages, like {doubles[:_SHOWN]}")


def check_rows(records: Records) -> Iterator[Violation]:
    """I4: the version of a row never falls within one incarnation, and the incarnation never.

    Unless the store is lost in between: what is sent again there begins with older versions.
    """
    versions: dict[tuple[str, str, str], tuple[int, Any]] = {}
    fallen: list[str] = []
    losses = [line["t"] for line in records.all_log if line.get("fault") == STORE_LOST]
    for at, cluster, resource, key, _uid, rv, number, _state in records.rows:
        if losses and losses[0] <= at:
            versions.clear()
            losses = [loss for loss in losses if loss > at]
        version = (int(number), version_key(rv))
        before = versions.get((cluster, resource, key))
        if before is not None and version < before:
            fallen.append(f"{cluster} {resource} {key!r}: {before} then {version}")
        versions[cluster, resource, key] = version
    if fallen:
        yield Violation("row-fell", f"{len(fallen)} rows, like {fallen[:_SHOWN]}")


# --- what processes did -----------------------------------------------------------------------


def check_writes(records: Records) -> Iterator[Violation]:
    """I5: whoever only watches writes nothing, and deletes nothing."""
    for cluster, requests in records.requests.items():
        writes = Counter(r["verb"] for r in requests if r["verb"] not in _READS)
        if writes:
            yield Violation("api-writes", f"{cluster}: {dict(writes)}")


_READS = frozenset({"get", "list", "watch", "discover", "health"})


def check_memory(records: Records) -> Iterator[Violation]:
    """W14: a watcher's memory is bounded."""
    sizes: dict[str, int] = {}
    for _, process, size in records.memory:
        if not process.startswith("projector"):
            sizes[process] = max(sizes.get(process, 0), size)
    bound = median(sizes.values()) + MEMORY_KB if sizes else 0
    if grown := {p: s for p, s in sizes.items() if s > bound}:
        yield Violation("memory", f"above {bound:.0f} KB: {grown}")


def check_ended(records: Records) -> Iterator[Violation]:
    """A fault of others ends no process of ours."""
    for line in records.log:
        if line["kind"] == "ended":
            yield Violation("process-ended", f"{line['process']}: {line['words']}")
