"""Who of a pool works on which cluster: pure computation, the same for every member (rule W22).

A rendezvous hash: each pair of cluster and member has a weight, and a cluster goes to the member
of its greatest weight. So a member that joins takes its share from all the others, one that goes
leaves its share to all of them, and nothing else moves. Alone that is uneven for a few clusters on
many members, so no member gets more than `_ROOM` of the mean: a cluster that a full member has to
refuse goes to the next one. Weights are served from the greatest down, so it is always the
smallest weight that is refused, and one more cluster or member moves few others.

Nothing here is a truth: members whose views differ for a moment both work (rule W15).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from hashlib import blake2b
from typing import Final

_ROOM: Final = 1.25
"""Of the mean; more would be uneven, less would move more clusters at each change."""


def weigh(cluster: str, member: str) -> int:
    """The weight of one pair: 64 bits, each of which depends on every character of both names.

    A hash with less avalanche gives members with similar names (`r-0` to `r-8`) unequal shares.
    """
    digest = blake2b(f"{member}\n{cluster}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def room_of_each(clusters: int, members: int) -> int:
    """How many clusters one member may get; never less than an even share."""
    return max(-(-clusters // members), int(_ROOM * clusters / members))


def share(clusters: Iterable[str], members: Iterable[str]) -> dict[str, str]:
    """Which member each cluster belongs to; empty if there is no member."""
    names, free = sorted(set(clusters)), dict.fromkeys(members, 0)
    if not free:
        return {}
    free = dict.fromkeys(free, room_of_each(len(names), len(free)))
    pairs = [(weigh(cluster, member), cluster, member) for cluster in names for member in free]
    found: dict[str, str] = {}
    for _, cluster, member in sorted(pairs, reverse=True):
        if cluster not in found and free[member]:
            found[cluster] = member
            free[member] -= 1
    return found


class Step(Enum):
    """What a member does about one cluster."""

    REST = auto()
    """It is not ours: nothing, and what runs stops."""
    WORK = auto()
    """The lease is ours."""
    CLAIM = auto()
    """Nobody works on it: take the lease, then work."""
    SUCCEED = auto()
    """Somebody else does: work beside it, and take the lease once that is under way."""


def next_step(
    me: str, *, holder: str | None, is_held: bool, owner: str | None, is_running: bool
) -> Step:
    """What to do about a cluster.

    Args:
        me: this member.
        holder: whom the lease names; None if there is none.
        is_held: whether that member lives, as far as we know.
        owner: whom the cluster belongs to, by `share`; None is anybody.
        is_running: whether we work on it.
    """
    if holder == me:
        return Step.WORK  # until somebody takes it: there is never nobody
    if is_held:
        return Step.SUCCEED if owner == me else Step.REST
    # A lease that vanished under us was lost with the bucket: it is ours before anybody else's.
    is_lost = holder is None and is_running
    return Step.CLAIM if owner in (me, None) or is_lost else Step.REST
