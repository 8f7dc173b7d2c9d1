"""Assigns clusters to pool members: pure computation, the same for every member (rule W22).

A rendezvous hash: each pair of cluster and member has a weight, and a cluster goes to the member
of its highest weight. So a member that joins takes its share from all the others, one that leaves
hands its share to all of them, and nothing else moves. That alone is uneven for few clusters on
many members, so no member gets more than `_MAX_SHARE` of the mean: a cluster that a full member
has to refuse goes to the next one. Weights are served from the highest down, so it is always the
lowest weight that is refused, and one more cluster or member moves few others.

Members whose views differ for a moment may both work on a cluster, which is harmless (rule W15).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from hashlib import blake2b
from typing import Final

_MAX_SHARE: Final = 1.25
"""Largest share, relative to the mean; more would be uneven, less would move more clusters at each
change."""


def weigh(cluster: str, member: str) -> int:
    """Return the weight of one pair: 64 bits that depend on every character of both names.

    A hash with less avalanche gives members with similar names (`r-0` to `r-8`) unequal shares.
    """
    digest = blake2b(f"{member}\n{cluster}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def capacity(clusters: int, members: int) -> int:
    """Return how many clusters one member may get; never less than an even share."""
    return max(-(-clusters // members), int(_MAX_SHARE * clusters / members))


def assign(clusters: Iterable[str], members: Iterable[str]) -> dict[str, str]:
    """Return the member of each cluster; empty if there is no member."""
    names, free = sorted(set(clusters)), dict.fromkeys(members, 0)
    if not free:
        return {}
    free = dict.fromkeys(free, capacity(len(names), len(free)))
    pairs = [(weigh(cluster, member), cluster, member) for cluster in names for member in free]
    assignment: dict[str, str] = {}
    for _, cluster, member in sorted(pairs, reverse=True):
        if cluster not in assignment and free[member]:
            assignment[cluster] = member
            free[member] -= 1
    return assignment


class Step(Enum):
    """The next step of a member for one cluster."""

    NONE = auto()
    """It is not ours: nothing is started, and what runs stops."""
    WORK = auto()
    """The lease is ours."""
    CLAIM = auto()
    """No member works on it: take the lease, then work."""
    SUCCEED = auto()
    """Another member works on it: work beside it, and take the lease once that is under way."""


def next_step(
    me: str, *, holder: str | None, is_held: bool, assigned: str | None, is_running: bool
) -> Step:
    """Return what to do about a cluster.

    Args:
        me: this member.
        holder: the holder of the lease; None if there is none.
        is_held: whether that member is alive, as far as we know.
        assigned: the member that `assign` chose; None if any may take it.
        is_running: whether we work on it.
    """
    if holder == me:
        return Step.WORK  # until another member takes it: there is always a holder
    if is_held:
        return Step.SUCCEED if assigned == me else Step.NONE
    # A lease that vanished while we work was lost with the bucket: it is ours first of all.
    is_lost = holder is None and is_running
    return Step.CLAIM if assigned in (me, None) or is_lost else Step.NONE
