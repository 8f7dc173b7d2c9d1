"""Finds the items of a list by the keys that managedFields name them by.

Lists and keys come from anybody, in any number: each key is looked up, not compared with each item.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

_MAX_NAMES: Final = 4
"""Members of a key; Kubernetes has keys of two."""
_MAX_INDEXES: Final = 4
"""Sets of members; the items of one list have one, unless versions of their type differ."""
_Values: TypeAlias = tuple[tuple[type, object], ...]
"""With their types: `true` is not 1."""
_SCALARS: Final = (str, int, float, bool)


def read_key(text: str) -> dict[str, Any]:
    """The key of an item as managedFields have it, `k:{"name":"web"}`; empty if it is none."""
    try:
        value: Any = json.loads(text[2:])
    except (ValueError, RecursionError):
        return {}
    key = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    is_key = len(key) <= _MAX_NAMES and all(isinstance(each, _SCALARS) for each in key.values())
    return key if is_key else {}


class ItemsByKey:
    """The items of a list, to be looked up by keys.

    Args:
        items: those that are no objects are in no place.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items
        self._indexes: dict[tuple[str, ...], dict[tuple[tuple[str, ...], _Values], list[int]]] = {}

    def __len__(self) -> int:
        """Number of items, including those that are not objects."""
        return len(self._items)

    def places(self, key: Mapping[str, Any], required: Collection[str]) -> list[int]:
        """Where items have the members of a key; those that are not required may be absent."""
        names = tuple(sorted(key))
        if (index := self._indexes.get(names)) is None:
            if len(self._indexes) == _MAX_INDEXES:
                return []
            index = self._indexes[names] = self._index(names)
        positions: list[int] = []
        for present in _subsets(names, required):
            positions += index.get((present, values_of(key, present)), ())
        return positions

    def _index(self, names: Sequence[str]) -> dict[tuple[tuple[str, ...], _Values], list[int]]:
        index: dict[tuple[tuple[str, ...], _Values], list[int]] = {}
        for number, item in enumerate(self._items):
            if isinstance(item, dict):
                members = cast("dict[str, Any]", item)
                present = tuple(name for name in names if name in members)
                index.setdefault((present, values_of(members, present)), []).append(number)
        return index


class FieldsByKey:
    """The fields that a manager has of the items of a list, to be looked up by items.

    Args:
        fields: a part of managedFields.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._indexes: dict[tuple[str, ...], dict[_Values, Mapping[str, Any]]] = {}
        for text, tree in fields.items():
            key = read_key(text) if text.startswith("k:") and isinstance(tree, dict) else {}
            names = tuple(sorted(key))
            if key and (names in self._indexes or len(self._indexes) < _MAX_INDEXES):
                index = self._indexes.setdefault(names, {})
                index[values_of(key, names)] = cast("Mapping[str, Any]", tree)

    def of(self, item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The fields of an item; of several parts if there are keys of several forms."""
        return [
            index[values]
            for names, index in self._indexes.items()
            if all(name in item for name in names) and (values := values_of(item, names)) in index
        ]


def values_of(members: Mapping[str, Any], names: Iterable[str]) -> _Values:
    """The values of members, to be compared; what is no scalar is equal to nothing."""
    return tuple(map(_value_of, (members[name] for name in names)))


def _value_of(value: object) -> tuple[type, object]:
    return (type(value), value) if isinstance(value, _SCALARS) else (object, object())


def _subsets(names: Sequence[str], required: Collection[str]) -> Iterable[tuple[str, ...]]:
    """The subsets of names that have all that are required."""
    optional = [name for name in names if name not in required]
    for bits in range(2 ** len(optional)):
        left_out = {name for at, name in enumerate(optional) if bits >> at & 1}
        yield tuple(name for name in names if name not in left_out)
