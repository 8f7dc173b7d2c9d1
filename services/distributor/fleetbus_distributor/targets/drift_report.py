"""Names the fields of an object that differ from the template, who changed each, and when.

Read from the managedFields of the live object: whoever changes a field by an update owns it from
then on. A field that was removed has no owner any more, so the last other writer is named for it,
unless it owns nothing else.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard, cast

from fleetbus.errors import Conflict
from fleetbus.kube.applied import is_identical
from fleetbus.kube.keyed_items import FieldsByKey
from fleetbus.owned_objects.force import conflicts
from fleetbus_distributor.health.fields import cut, items, text, tree
from fleetbus_distributor.render.template import Object

_NAMED: Final = 3
_HELD_BY: Final = re.compile(r'conflict with "([^"]*)"(?:.* at (\S+))?')
MAX_CAUSES: Final = 20
"""Number of causes that are shown; a server may name any number."""
_UNOWNED: Final = frozenset({"apiVersion", "kind", "status"})
_METADATA: Final = ("labels", "annotations")
_MAX_HOLDERS: Final = 20
"""The last ones; an API server keeps ten that update, and those that apply are few."""
_MAX_PATH: Final = 300
"""Characters of a field: one long name would be repeated for everything below it."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One field that differs."""

    field: str
    """Empty if the whole object is gone."""
    manager: str = ""
    """Empty if nobody else has ever written the object."""
    time: str = ""
    is_removed: bool = False

    def __str__(self) -> str:
        if not self.field:
            return "it was deleted"
        verb = "removed" if self.is_removed else "changed"
        who = f" by {self.manager}" if self.manager else ""
        when = f" at {self.time}" if self.time else ""
        return f"{self.field} was {verb}{who}{when}"


@dataclass(frozen=True, slots=True)
class _Holder:
    """A manager, with the part of its fields that belongs to one place of the object."""

    manager: str
    time: str
    operation: str
    fields: Mapping[str, Any]


def find_drift(wanted: Object, made: Object, live: Object, manager: str) -> list[Drift]:
    """List the fields of a template that differ on the cluster.

    Args:
        wanted: the object as it would be applied; it names the fields.
        made: the object as an apply makes it, or would make it; it has their values, as the server
            writes them.
        live: the object before that, with its managedFields.
        manager: our field manager.
    """
    holders = _others(live, manager)
    found = _differences(wanted, made, live, holders)
    last = max(holders, key=lambda one: one.time, default=None)
    if last is None:
        return found
    return [
        one if one.manager else replace(one, manager=last.manager, time=last.time) for one in found
    ]


def find_updated(wanted: Object, made: Object, live: Object, manager: str) -> list[Drift]:
    """List the fields that others hold by a plain update, where the template may be another one.

    Args:
        wanted: the object as it is applied.
        made: the object as that has made it.
        live: the object before that, with its managedFields.
        manager: our field manager.
    """
    holders = [one for one in _others(live, manager) if one.operation == "Update"]
    return [one for one in _differences(wanted, made, live, holders) if one.manager]


def _differences(
    wanted: Object, made: Object, live: Object, holders: Sequence[_Holder]
) -> list[Drift]:
    metadata: Object = {name: wanted["metadata"].get(name) or {} for name in _METADATA}
    body = {key: part for key, part in wanted.items() if key not in {*_UNOWNED, "metadata"}}
    return list(_compare({**body, "metadata": metadata}, made, live, holders, ""))


def fields_in_conflict(error: Conflict) -> list[Drift]:
    """The fields that others hold, each with its manager, and the time if the server tells."""
    fields: list[Drift] = []
    for cause in conflicts(error)[:MAX_CAUSES]:
        match = _HELD_BY.match(text(cause.get("message")))
        manager, when = match.groups("") if match else ("", "")
        fields.append(Drift(text(cause.get("field")), manager, when))
    return fields


def describe_drift(found: Sequence[Drift]) -> str:
    """Describe drift in a few words, without any value."""
    named = "; ".join(map(str, found[:_NAMED]))
    more = f"; and {len(found) - _NAMED} more fields" if len(found) > _NAMED else ""
    return named + more


def describe_corrections(found: Sequence[tuple[str, Sequence[Drift]]]) -> str:
    """Describe drift of several objects, each with its name, without any value."""
    named = "; ".join(f"{name}: {describe_drift(drift)}" for name, drift in found[:_NAMED])
    more = f"; and {len(found) - _NAMED} more objects" if len(found) > _NAMED else ""
    return named + more


def _others(live: Object, manager: str) -> list[_Holder]:
    entries: Any = live["metadata"].get("managedFields")
    others = (
        _Holder(
            str(one.get("manager")),
            str(one.get("time", "")),
            str(one.get("operation", "")),
            tree(one.get("fieldsV1")),
        )
        for one in items(entries)
        if one.get("manager") != manager and not one.get("subresource")
    )
    return heapq.nlargest(_MAX_HOLDERS, others, key=lambda one: one.time)


def _compare(
    wanted: Any, made: Any, live: Any, holders: Sequence[_Holder], path: str
) -> Iterator[Drift]:
    if _is_map(wanted) and _is_map(made) and _is_map(live):
        for key, value in wanted.items():
            inner = _within(holders, f"f:{key}")
            step = f".{key}" if key.replace("-", "").isalnum() else f'["{key}"]'
            shown = cut(path + step, _MAX_PATH)
            if key in live:
                yield from _compare(value, made.get(key), live[key], inner, shown)
            elif made.get(key) not in (None, {}, []):
                yield Drift(shown, is_removed=True)
    elif _is_keyed(wanted) and _is_list(made) and _is_list(live):
        after, before = _by_name(made), _by_name(live)
        fields = [(one, FieldsByKey(one.fields)) for one in holders]
        for item in cast("list[Object]", wanted):
            name = item["name"]
            shown = cut(f'{path}[name="{name}"]', _MAX_PATH)
            if (found := before.get(name)) is None:
                yield Drift(shown, is_removed=True)
                continue
            inner = [replace(one, fields=part) for one, every in fields for part in every.of(found)]
            yield from _compare(item, after.get(name), found, inner, shown)
    elif not is_identical(made, live):
        last = max(holders, key=lambda one: one.time, default=None)
        yield Drift(path, last.manager, last.time) if last else Drift(path)


def _by_name(found: list[Any]) -> dict[str, Object]:
    """The items of a list by their names, of which the first counts."""
    named: dict[str, Object] = {}
    for one in items(found):
        named.setdefault(text(one.get("name")), one)
    return named


def _is_map(value: Any) -> TypeGuard[Object]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_keyed(wanted: Any) -> bool:
    """Whether a list has items that are identified by their names."""
    every = cast("list[Any]", wanted) if isinstance(wanted, list) else []
    return bool(every) and all(
        isinstance(one, dict) and isinstance(cast("Object", one).get("name"), str) for one in every
    )


def _within(holders: Sequence[_Holder], key: str) -> list[_Holder]:
    return [replace(one, fields=tree(one.fields[key])) for one in holders if key in one.fields]
