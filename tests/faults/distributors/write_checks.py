"""Checks of what distributors did: every deletion was wanted, and no stranger was hurt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Final

from faults.distributors.desired import Place
from faults.distributors.history import History, Version, Write, owner_uid
from faults.distributors.settings import HUB, NEW_NAME, RENAMED
from faults.distributors.users import CANARY, WAVED
from faults.rig.records import Json, Violation

STALE_SECONDS: Final = 20.0
"""So long ago a round may have read what it acts upon: it waits for slow targets."""
_NEAR_SECONDS: Final = 20.0
"""An edit so close to a relabelling may have been applied together with it."""
FUSE_CLUSTERS: Final = 2
FUSE_PERCENT: Final = 30


def server_of(cluster: str) -> str:
    """The API server behind a name of the fleet."""
    return RENAMED if cluster == NEW_NAME else cluster


def check_strangers(history: History) -> Iterator[Violation]:
    """D4: what does not carry our mark, and never did, is neither changed nor deleted."""
    own_uids: set[str] = set()
    for write in history.writes:
        uid = str((write.after or write.before or {})["metadata"]["uid"])
        is_foreign = (
            write.before is not None and not owner_uid(write.before) and uid not in own_uids
        )
        if write.by_distributor and is_foreign:
            place = f"{write.kind} {write.name} on {write.server}"
            yield Violation("D4 stranger", f"{write.type} {place}, which is not ours")
        if owner_uid(write.after):
            own_uids.add(uid)


def check_marks(history: History) -> Iterator[Violation]:
    """W13, D4: what is written to a cluster is marked for it, and no other's is deleted."""
    for write in history.writes:
        if write.by_distributor and server_of(write.place.cluster) != write.server:
            yield Violation("W13 wrong cluster", f"{write.type} {write.place} on {write.server}")


def check_deletions(history: History) -> Iterator[Violation]:
    """D1, D5, D8: what is deleted was not wanted, and a person has asked for its deletion."""
    automatic: dict[str, list[Write]] = defaultdict(list)
    for write in history.writes:
        if not write.by_distributor or write.type != "DELETED" or not write.owner:
            continue
        versions = history.during(write.owner, write.t - STALE_SECONDS, write.t)
        if any(version.is_deleted for version in versions):
            continue
        if all(version.wants(write.place) for version in versions):
            yield Violation("D1 deletion", f"{write.place} was deleted, and was always wanted")
        elif not _is_requested(history, write):
            automatic[write.owner].append(write)
    for uid, writes in automatic.items():
        yield from _check_fuse(history, uid, writes)


def _is_requested(history: History, deletion: Write) -> bool:
    """Whether an edit has dropped the object, and not a relabelling alone."""
    versions = history.during(deletion.owner, 0, deletion.t)
    place = deletion.place
    dropped = max(
        (
            now.t
            for before, now in pairwise(versions)
            if before.wants(place) and not now.wants(place)
        ),
        default=None,
    )
    if dropped is None:
        return True  # as old as the resource: adopted from an earlier one, say
    return any(version.is_edit and abs(version.t - dropped) < _NEAR_SECONDS for version in versions)


def _check_fuse(history: History, uid: str, writes: Sequence[Write]) -> Iterator[Violation]:
    """Deletions that nobody requested: on one cluster, and few."""
    confirmed = min(history.confirmed[uid], default=inf)
    writes = [write for write in writes if write.t < confirmed]
    if not writes:
        return
    name = history.names[uid]
    clusters = {write.place.cluster for write in writes}
    if len(clusters) >= FUSE_CLUSTERS:
        names_of_clusters = ", ".join(sorted(clusters))
        yield Violation(
            "D8 fuse", f"{name} was deleted on {names_of_clusters}, and no edit requests that"
        )
    owned = _owned_before(history, uid, writes[0].t)
    if len(writes) * 100 > FUSE_PERCENT * len(owned):
        text = f"{len(writes)} of {len(owned)} objects of {name} were deleted on {clusters}"
        yield Violation("D8 fuse", f"{text}, and no edit requests that")


def _owned_before(history: History, uid: str, t: float) -> set[Place]:
    owned: set[Place] = set()
    for write in history.writes:
        if write.t >= t:
            break
        if write.owner == uid:
            (owned.discard if write.type == "DELETED" else owned.add)(write.place)
    return owned


def check_waves(history: History, log: Sequence[Json]) -> Iterator[Violation]:
    """D17: the clusters behind the first wave get a version only after a vote for its revision."""
    votes = [(entry["t"], entry["name"]) for entry in log if entry["kind"] == "vote"]
    began: dict[tuple[str, str], float] = {}
    for uid, versions in history.versions.items():
        name = history.names[uid]
        for version in versions if name in WAVED else ():
            if version.resource is not None:
                mark = _version_of(version)
                began.setdefault((uid, mark), version.t)
    for write in history.writes:
        name = history.names.get(write.owner, "")
        is_new = write.after and write.by_distributor and write.kind == "ConfigMap"
        if not is_new or name not in WAVED or write.server == CANARY:
            continue
        mark = (write.after or {}).get("data", {}).get("v", "")
        since = began.get((write.owner, mark), 0.0)
        if not any(since < t <= write.t and voted == name for t, voted in votes):
            yield Violation("D17 wave", f"{write.place} got version {mark} before any vote")


def _version_of(version: Version) -> str:
    assert version.resource is not None
    return str(version.resource["spec"]["templates"][0]["data"]["v"])


def check_excuses(history: History, state: Json) -> Iterator[Violation]:
    """D2, D7: there are orphans only of what the hub forgot, or of clusters that left the fleet."""
    creations: dict[tuple[str, str, str], float] = {}
    for write in history.writes:
        key = (write.server, write.kind, write.name)
        if write.before is None:
            creations[key] = write.t
    for cluster, kind, name in state["orphans"]:
        server = server_of(cluster)
        since = creations.get((server, kind, name), 0.0)
        left = [t for t, leaver in history.leaves if server_of(leaver) == server]
        if cluster != HUB and not any(t > since for t in (*history.restores, *left)):
            text = f"{kind} {name} of {cluster} is an orphan, and the hub was not restored since"
            yield Violation("D2 orphan", text)
