"""Accepted names of a definition: those that no other definition of its group has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.json_tree import listing, mapping

if TYPE_CHECKING:
    from collections.abc import Iterable

JsonObject = dict[str, Any]
# The names in the order in which they are checked; the last conflict is the one reported.
RESOURCES = (("plural", "PluralConflict"), ("singular", "SingularConflict"))
KINDS = (("kind", "KindConflict"), ("listKind", "ListKindConflict"))
ORDER = ("plural", "singular", "shortNames", "kind", "listKind", "categories")


@dataclass(slots=True)
class Naming:
    """The names that were accepted, and the conflict that kept others from it."""

    accepted: JsonObject
    reason: str = ""
    message: str = ""


@dataclass(slots=True)
class _Taken:
    """The names that other definitions of the group have."""

    resources: set[str] = field(default_factory=set[str])
    kinds: set[str] = field(default_factory=set[str])


def accept_names(definition: JsonObject, others: Iterable[JsonObject]) -> Naming:
    """Accept the requested names that are free; otherwise names accepted before stay."""
    wanted: JsonObject = mapping(definition, "spec", "names")
    naming = Naming(dict(mapping(definition, "status", "acceptedNames")))
    taken = _taken(others)
    for name, reason in RESOURCES:
        _accept(naming, wanted, name, taken.resources, reason)
    _accept_short_names(naming, wanted, taken.resources)
    for name, reason in KINDS:
        _accept(naming, wanted, name, taken.kinds, reason)
    naming.accepted["categories"] = listing(wanted, "categories")
    present = {name: naming.accepted.get(name) for name in ORDER}
    naming.accepted = {name: value for name, value in present.items() if value}
    return naming


def _taken(others: Iterable[JsonObject]) -> _Taken:
    taken = _Taken()
    for other in others:
        names: JsonObject = mapping(other, "status", "acceptedNames")
        taken.resources.update(names.get(name) or "" for name, _ in RESOURCES)
        taken.resources.update(listing(names, "shortNames"))
        taken.kinds.update(names.get(name) or "" for name, _ in KINDS)
    return taken


def _accept(naming: Naming, wanted: JsonObject, name: str, taken: set[str], reason: str) -> None:
    text = wanted.get(name)
    if text in taken and text != naming.accepted.get(name):
        naming.reason, naming.message = reason, f'"{text}" is already in use'
    else:
        naming.accepted[name] = text


def _accept_short_names(naming: Naming, wanted: JsonObject, taken: set[str]) -> None:
    texts: list[str] = listing(wanted, "shortNames")
    mine = set(listing(naming.accepted, "shortNames"))
    conflicts = [f'"{text}" is already in use' for text in texts if text in taken - mine]
    if conflicts:
        naming.reason = "ShortNamesConflict"
        naming.message = conflicts[0] if len(conflicts) == 1 else f"[{', '.join(conflicts)}]"
    else:
        naming.accepted["shortNames"] = texts
