"""Remembers what this process has seen on the targets, to spare requests (rule D11).

Each apply comes back as an event. What the object is like at that version was the answer to the
apply, so a round that the event triggers would read three things to find nothing. Whatever happens
to the object later has another version and an event of its own. Another process knows nothing of
the write; its round is spared nothing, and does no harm.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from fleetbus.kube.applied import ServerAnswers
from fleetbus_distributor.targets.missing_types import MissingTypes
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb

_MOST: Final = 100_000
"""The oldest go first; an event is under way for seconds at most."""


class SeenOnTargets:
    """The versions that applies of this process have made, and what targets have and lack.

    Attributes:
        types: the types that they lack.
        answers: the objects that their servers take for what was applied to them.
    """

    def __init__(self) -> None:
        self.types = MissingTypes()
        self.answers = ServerAnswers()
        self._versions: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._namespaces: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note_write(self, cluster: str, made: Mapping[str, Any]) -> None:
        """Remember the answer to an apply on a cluster."""
        metadata = made["metadata"]
        self._versions[cluster, metadata["uid"], metadata["resourceVersion"]] = None
        if len(self._versions) > _MOST:
            self._versions.popitem(last=False)

    def has_made(self, event: Event) -> bool:
        """Whether an event shows just what an apply of this process made of an object."""
        if event.verb is Verb.DELETED:
            return False
        return (event.cluster, event.uid, event.resource_version) in self._versions

    def note_namespace(self, cluster: str, name: str) -> None:
        """Remember that a namespace exists."""
        self._namespaces[cluster, name] = None
        if len(self._namespaces) > _MOST:
            self._namespaces.popitem(last=False)

    def forget_namespace(self, cluster: str, name: str) -> None:
        """Forget that a namespace exists: the server has denied it."""
        self._namespaces.pop((cluster, name), None)

    def has_namespace(self, cluster: str, name: str) -> bool:
        """Whether a namespace existed when it was last asked for; it may be gone by now."""
        return (cluster, name) in self._namespaces
