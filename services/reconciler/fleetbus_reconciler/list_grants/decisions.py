"""Grant requests as the projector decides about them, and its decisions (rule W7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from fleetbus.watchers.grant_requests import GrantAnswer, GrantRequest, GrantRequests
from fleetbus_proto.keys import split_kv_grant

_RequestId = tuple[str, str, int]
CandidateId = tuple[str, str, str, int]


class Candidate(NamedTuple):
    """One grant request, with the key of its resource."""

    key: str
    request: GrantRequest

    @property
    def cluster(self) -> str:
        """The cluster of the resource, to whose share the list counts."""
        return split_kv_grant(self.key)[0]

    @property
    def identity(self) -> CandidateId:
        """The parts that stay the same, whatever its state."""
        return (self.key, *self.request.identity)

    @property
    def listing(self) -> tuple[str, int]:
        """The identity that the events of its epoch share."""
        return (self.cluster, self.request.epoch)

    @property
    def epoch(self) -> Epoch:
        """Its list, once it has begun."""
        cluster, group, resource = split_kv_grant(self.key)
        return Epoch(cluster, f"{group}/{resource}", self.request.epoch)


class Epoch(NamedTuple):
    """One list, running or ended."""

    cluster: str
    resource_key: str
    id: int


class Decisions:
    """The changes of one turn: answers to requests, or their removal.

    Attributes:
        granted: the clusters to notify.
    """

    def __init__(self) -> None:
        self.granted: set[str] = set()
        self._answers: dict[str, dict[_RequestId, tuple[GrantRequest, GrantAnswer | None]]] = (
            defaultdict(dict)
        )

    def answer(self, candidate: Candidate, answer: GrantAnswer) -> None:
        """Answer a request."""
        self._answers[candidate.key][candidate.request.identity] = (candidate.request, answer)
        if answer.granted:
            self.granted.add(candidate.cluster)

    def remove(self, candidate: Candidate) -> None:
        """Remove a request."""
        self._answers[candidate.key][candidate.request.identity] = (candidate.request, None)

    @property
    def keys(self) -> Sequence[str]:
        """The keys to write."""
        return list(self._answers)

    def apply_to(self, key: str, requests: GrantRequests) -> GrantRequests:
        """Apply the decisions to the requests of a key, but not to those changed meanwhile."""
        remaining: list[GrantRequest] = []
        answers = self._answers[key]
        for request in requests:
            if request.identity not in answers:
                remaining.append(request)  # it is new
                continue
            before, answer = answers[request.identity]
            if answer is None:
                if before.epoch != request.epoch:
                    remaining.append(request)  # it seemed dead, but has just begun
            elif request.is_granted:
                remaining.append(request)  # another projector was faster
            else:
                remaining.append(msgspec.structs.replace(request, answer=answer))
        return tuple(remaining)
