"""The object that a request is about, by its type and name."""

from __future__ import annotations

from dataclasses import dataclass

from fleetbus_emulator.apiserver.types.resource import ResourceType, TypeVersion
from fleetbus_emulator.apiserver.types.served import Served


@dataclass(frozen=True, slots=True)
class Target:
    """The object that a request is about."""

    served: Served
    namespace: str | None
    name: str
    subresource: str = ""

    @property
    def rtype(self) -> ResourceType:
        """The resource type."""
        return self.served.rtype

    @property
    def version(self) -> TypeVersion:
        """The version the request speaks."""
        return self.served.version

    @property
    def key(self) -> tuple[str, str]:
        """The key of the object in its store."""
        return self.rtype.key(self.namespace, self.name)
