"""The asks of the fleet as the projector decides about them, and what it decides (rule W7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from fleetbus.watchers.grant_requests import GrantAnswer, GrantRequest, GrantRequests
from fleetbus_proto.keys import split_kv_grant

_AskIdentity = tuple[str, str, int]
PlaceIdentity = tuple[str, str, str, int]


class Place(NamedTuple):
    """One ask of one resource."""

    key: str
    ask: GrantRequest

    @property
    def cluster(self) -> str:
        """Whose resource it is, and so who pays for it."""
        return split_kv_grant(self.key)[0]

    @property
    def identity(self) -> PlaceIdentity:
        """What stays the same of it, however it stands."""
        return (self.key, *self.ask.identity)

    @property
    def listing(self) -> tuple[str, int]:
        """What the events of its epoch have in common."""
        return (self.cluster, self.ask.epoch)

    @property
    def epoch(self) -> Epoch:
        """Its list, once that has begun."""
        cluster, group, resource = split_kv_grant(self.key)
        return Epoch(cluster, f"{group}/{resource}", self.ask.epoch)


class Epoch(NamedTuple):
    """One list that runs, or has ended."""

    cluster: str
    resource_key: str
    id: int


class Turn:
    """What one turn changes: an answer for an ask, or None for one that is over.

    Attributes:
        granted: the clusters that are waited for.
    """

    def __init__(self) -> None:
        self.granted: set[str] = set()
        self._answers: dict[str, dict[_AskIdentity, tuple[GrantRequest, GrantAnswer | None]]] = (
            defaultdict(dict)
        )

    def answer(self, place: Place, answer: GrantAnswer) -> None:
        """Write this beside the ask."""
        self._answers[place.key][place.ask.identity] = (place.ask, answer)
        if answer.granted:
            self.granted.add(place.cluster)

    def end(self, place: Place) -> None:
        """Take the ask away."""
        self._answers[place.key][place.ask.identity] = (place.ask, None)

    @property
    def keys(self) -> Sequence[str]:
        """What has to be written."""
        return list(self._answers)

    def change(self, key: str, asks: GrantRequests) -> GrantRequests:
        """The asks of a key after the turn; those that changed meanwhile stay as they are."""
        kept: list[GrantRequest] = []
        answers = self._answers[key]
        for ask in asks:
            if ask.identity not in answers:
                kept.append(ask)  # it came meanwhile
                continue
            told, answer = answers[ask.identity]
            if answer is None:
                if told.epoch != ask.epoch:
                    kept.append(ask)  # thought dead, but it has begun this moment
            elif ask.is_granted:
                kept.append(ask)  # another projector was faster
            else:
                kept.append(msgspec.structs.replace(ask, answer=answer))
        return tuple(kept)
