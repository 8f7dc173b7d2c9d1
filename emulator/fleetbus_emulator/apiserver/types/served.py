"""The registry of served types by path; custom resources come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fleetbus_emulator.apiserver.close_names import closest_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetbus_emulator.apiserver.types.resource import ResourceType, TypeVersion


_CLOSE: Final = 0.8
"""The similarity of names from which one is suggested for the other."""


@dataclass(frozen=True, slots=True)
class Served:
    """A type as served in one version."""

    rtype: ResourceType
    version: TypeVersion

    @property
    def api_version(self) -> str:
        """The apiVersion of its objects."""
        return self.rtype.api_version(self.version.name)


class ServedTypes:
    """The types of one cluster.

    Args:
        types: Those that it begins with.
    """

    def __init__(self, types: Iterable[ResourceType] = ()) -> None:
        self._paths: dict[tuple[str, str, str], Served] = {}
        self._types: dict[tuple[str, str], ResourceType] = {}
        for rtype in types:
            self.add(rtype)

    def copy(self) -> ServedTypes:
        """The same types, for another cluster."""
        copied = ServedTypes()
        copied._paths.update(self._paths)
        copied._types.update(self._types)
        return copied

    def add(self, rtype: ResourceType) -> None:
        """Serve a type; replaces an earlier definition of the same type."""
        self.remove(rtype.group, rtype.plural)
        self._types[rtype.group, rtype.plural] = rtype
        for name, version in rtype.versions.items():
            self._paths[rtype.group, name, rtype.plural] = Served(rtype, version)

    def remove(self, group: str, plural: str) -> None:
        """Serve a type no longer."""
        rtype = self._types.pop((group, plural), None)
        if rtype is not None:
            for name in rtype.versions:
                del self._paths[group, name, plural]

    def find(self, group: str, version: str, plural: str) -> Served | None:
        """The type at a path, or None."""
        return self._paths.get((group, version, plural))

    def closest(self, gvr: str) -> str:
        """The name of a served type that is close to a name like `v1/pdos`; empty if none is."""
        names = ("/".join(filter(None, path)) for path in self._paths)
        return closest_name(gvr.lower(), names, cutoff=_CLOSE)

    def type_of(self, group: str, plural: str) -> ResourceType | None:
        """The type regardless of version, or None."""
        return self._types.get((group, plural))

    def kind(self, group: str, kind: str) -> ResourceType | None:
        """The type of a kind, or None."""
        matching = (t for t in self._types.values() if t.group == group and t.kind == kind)
        return next(matching, None)

    def all(self) -> list[ResourceType]:
        """All types."""
        return list(self._types.values())

    def custom_types(self) -> list[ResourceType]:
        """The types that definitions brought."""
        return [rtype for rtype in self._types.values() if rtype.custom]

    def groups(self) -> dict[str, list[str]]:
        """The named groups with their versions; the preferred version comes first."""
        versions: dict[str, list[str]] = {}
        for group, version, _ in self._paths:
            if group and version not in versions.setdefault(group, []):
                versions[group].append(version)
        return {group: sorted(names, key=version_rank) for group, names in sorted(versions.items())}

    def in_version(self, group: str, version: str) -> list[Served]:
        """The types served under /apis/GROUP/VERSION, by plural."""
        types = [s for (g, v, _), s in self._paths.items() if (g, v) == (group, version)]
        return sorted(types, key=lambda served: served.rtype.plural)


def version_rank(name: str) -> tuple[int, int, int, str]:
    """Sorts versions as Kubernetes prefers them: v2, v1, v1beta2, v1beta1, v1alpha1."""
    stability = 1 if "beta" in name else 2 if "alpha" in name else 0
    numbers = [int(n) for n in "".join(c if c.isdigit() else " " for c in name).split()]
    major, minor = (*numbers, 0, 0)[:2]
    return (stability, -major, -minor, name)
