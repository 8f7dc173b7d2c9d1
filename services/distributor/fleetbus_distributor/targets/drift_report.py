"""Names the fields of an object that differ from the template, who changed each, and when.

Read from the managedFields of the live object: whoever changes a field by an update owns it from
then on. A field that was removed has no owner any more, so the last other writer is named for it,
unless it owns nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard, cast

from fleetbus.kube.applied import is_identical
from fleetbus_distributor.render.template import Object

_NAMED: Final = 3
_UNOWNED: Final = frozenset({"apiVersion", "kind", "status"})
_METADATA: Final = ("labels", "annotations")


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
    entries = cast("list[dict[str, Any]]", live["metadata"].get("managedFields") or [])
    return [
        _Holder(
            str(one.get("manager")),
            str(one.get("time", "")),
            str(one.get("operation", "")),
            one.get("fieldsV1") or {},
        )
        for one in entries
        if one.get("manager") != manager and not one.get("subresource")
    ]


def _compare(
    wanted: Any, made: Any, live: Any, holders: Sequence[_Holder], path: str
) -> Iterator[Drift]:
    if _is_map(wanted) and _is_map(made) and _is_map(live):
        for key, value in wanted.items():
            inner = _within(holders, f"f:{key}")
            shown = f"{path}.{key}" if key.replace("-", "").isalnum() else f'{path}["{key}"]'
            if key in live:
                yield from _compare(value, made.get(key), live[key], inner, shown)
            elif made.get(key) not in (None, {}, []):
                yield Drift(shown, is_removed=True)
    elif _is_keyed(wanted) and _is_list(made) and _is_list(live):
        for item in cast("list[Object]", wanted):
            yield from _compare_item(item, made, live, holders, path)
    elif not is_identical(made, live):
        last = max(holders, key=lambda one: one.time, default=None)
        yield Drift(path, last.manager, last.time) if last else Drift(path)


def _compare_item(
    item: Object, made: list[Any], live: list[Any], holders: Sequence[_Holder], path: str
) -> Iterator[Drift]:
    shown = f'{path}[name="{item["name"]}"]'
    after, before = _named(made, item["name"]), _named(live, item["name"])
    if before is None:
        yield Drift(shown, is_removed=True)
        return
    inner = [
        replace(one, fields=cast("Mapping[str, Any]", tree))
        for one in holders
        for key, tree in one.fields.items()
        if key.startswith("k:") and json.loads(key[2:]).items() <= before.items()
    ]
    yield from _compare(item, after, before, inner, shown)


def _named(items: list[Any], name: str) -> Object | None:
    maps = [cast("Object", one) for one in items if isinstance(one, dict)]
    return next((one for one in maps if one.get("name") == name), None)


def _is_map(value: Any) -> TypeGuard[Object]:
    return isinstance(value, dict)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_keyed(wanted: Any) -> bool:
    """Whether a list has items that are identified by their names."""
    items = cast("list[Any]", wanted) if isinstance(wanted, list) else []
    return bool(items) and all(
        isinstance(one, dict) and isinstance(cast("Object", one).get("name"), str) for one in items
    )


def _within(holders: Sequence[_Holder], key: str) -> list[_Holder]:
    return [replace(one, fields=one.fields[key]) for one in holders if key in one.fields]
