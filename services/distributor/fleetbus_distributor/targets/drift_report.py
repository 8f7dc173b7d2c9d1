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
from fleetbus.kube.json_fields import many, mapping, string
from fleetbus.kube.keyed_items import FieldsByKey
from fleetbus.owned_objects.force import conflicts
from fleetbus.process.redact import cut
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


def find_drift(configuration: Object, applied: Object, live: Object, manager: str) -> list[Drift]:
    """List the fields of a template that differ on the cluster.

    Args:
        configuration: the object as it would be applied; it names the fields.
        applied: the object as an apply makes it, or would make it; it has their values, as the
            server writes them.
        live: the object before that, with its managedFields.
        manager: our field manager.
    """
    holders = _others(live, manager)
    drift = _differences(configuration, applied, live, holders)
    last = max(holders, key=lambda field: field.time, default=None)
    if last is None:
        return drift
    return [
        field if field.manager else replace(field, manager=last.manager, time=last.time)
        for field in drift
    ]


def find_updated(configuration: Object, applied: Object, live: Object, manager: str) -> list[Drift]:
    """List the fields that others hold by a plain update, where the template may be another one.

    Args:
        configuration: the object as it is applied.
        applied: the object as that has made it.
        live: the object before that, with its managedFields.
        manager: our field manager.
    """
    holders = [entry for entry in _others(live, manager) if entry.operation == "Update"]
    return [entry for entry in _differences(configuration, applied, live, holders) if entry.manager]


def _differences(
    configuration: Object, applied: Object, live: Object, holders: Sequence[_Holder]
) -> list[Drift]:
    metadata: Object = {name: configuration["metadata"].get(name) or {} for name in _METADATA}
    body = {
        key: value for key, value in configuration.items() if key not in {*_UNOWNED, "metadata"}
    }
    return list(_compare({**body, "metadata": metadata}, applied, live, holders, ""))


def fields_in_conflict(error: Conflict) -> list[Drift]:
    """The fields that others hold, each with its manager, and the time if the server tells."""
    fields: list[Drift] = []
    for cause in conflicts(error)[:MAX_CAUSES]:
        match = _HELD_BY.match(string(cause, "message"))
        manager, when = match.groups("") if match else ("", "")
        fields.append(Drift(string(cause, "field"), manager, when))
    return fields


def describe_drift(drift: Sequence[Drift]) -> str:
    """Describe drift in a few words, without any value."""
    named = "; ".join(map(str, drift[:_NAMED]))
    more = f"; and {len(drift) - _NAMED} more fields" if len(drift) > _NAMED else ""
    return named + more


def describe_corrections(corrections: Sequence[tuple[str, Sequence[Drift]]]) -> str:
    """Describe drift of several objects, each with its name, without any value."""
    named = "; ".join(f"{name}: {describe_drift(drift)}" for name, drift in corrections[:_NAMED])
    more = f"; and {len(corrections) - _NAMED} more objects" if len(corrections) > _NAMED else ""
    return named + more


def _others(live: Object, manager: str) -> list[_Holder]:
    entries: Any = live["metadata"].get("managedFields")
    others = (
        _Holder(
            str(entry.get("manager")),
            str(entry.get("time", "")),
            str(entry.get("operation", "")),
            mapping(entry, "fieldsV1"),
        )
        for entry in many(entries)
        if entry.get("manager") != manager and not entry.get("subresource")
    )
    return heapq.nlargest(_MAX_HOLDERS, others, key=lambda entry: entry.time)


def _compare(
    configuration: Any, applied: Any, live: Any, holders: Sequence[_Holder], path: str
) -> Iterator[Drift]:
    if _is_map(configuration) and _is_map(applied) and _is_map(live):
        for key, value in configuration.items():
            inner = _within(holders, f"f:{key}")
            step = f".{key}" if key.replace("-", "").isalnum() else f'["{key}"]'
            place = cut(path + step, _MAX_PATH)
            if key in live:
                yield from _compare(value, applied.get(key), live[key], inner, place)
            elif applied.get(key) not in (None, {}, []):
                yield Drift(place, is_removed=True)
    elif _is_keyed(configuration) and _is_list(applied) and _is_list(live):
        after, before = _by_name(applied), _by_name(live)
        fields = [(holder, FieldsByKey(holder.fields)) for holder in holders]
        for item in cast("list[Object]", configuration):
            name = item["name"]
            place = cut(f'{path}[name="{name}"]', _MAX_PATH)
            if (item_before := before.get(name)) is None:
                yield Drift(place, is_removed=True)
                continue
            inner = [
                replace(holder, fields=item_fields)
                for holder, every in fields
                for item_fields in every.of(item_before)
            ]
            yield from _compare(item, after.get(name), item_before, inner, place)
    elif not is_identical(applied, live):
        last = max(holders, key=lambda holder: holder.time, default=None)
        yield Drift(path, last.manager, last.time) if last else Drift(path)


def _by_name(members: list[Any]) -> dict[str, Object]:
    """The items of a list by their names, of which the first counts."""
    named: dict[str, Object] = {}
    for member in many(members):
        named.setdefault(string(member, "name"), member)
    return named


def _is_map(value: Any) -> TypeGuard[Object]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_keyed(value: Any) -> bool:
    """Whether a list has items that are identified by their names."""
    every = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(every) and all(
        isinstance(item, dict) and isinstance(cast("Object", item).get("name"), str)
        for item in every
    )


def _within(holders: Sequence[_Holder], key: str) -> list[_Holder]:
    return [
        replace(holder, fields=mapping(holder.fields[key]))
        for holder in holders
        if key in holder.fields
    ]
