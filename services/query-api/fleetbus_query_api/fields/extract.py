"""Extracts one field from the JSON of an object, without building the rest of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from fleetbus.kube.field_paths import (
    MAX_VALUES,
    FieldPath,
    Special,
    Step,
    TooManyValues,
    Value,
    one_of,
)
from fleetbus_query_api.fields.bodies import BROKEN, UnreadableBody, decode
from fleetbus_query_api.fields.variants import read_variant, resource_of_variant

_NAME: Final = "below"

Read: TypeAlias = Callable[[bytes], Value]


@lru_cache(maxsize=512)
def field_reader(path: FieldPath) -> Read:
    """Make a function that reads a field; it raises `UnreadableBody`."""
    if (resource := resource_of_variant(path)) is not None:
        return lambda body: read_variant(resource, body)
    try:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_type_of(path.steps))
    except ValueError:  # a name that no Struct can have, like `a"b`: slower, and always right
        return lambda body: _read_tree(path, body)

    find = _find_plain if all(isinstance(step, str) for step in path.steps) else _find

    def read(body: bytes) -> Value:
        if not body:
            raise UnreadableBody
        try:
            return find(decoder.decode(body), path)
        except msgspec.ValidationError:  # another type on the way: slower, and always right
            return _read_tree(path, body)
        except BROKEN as e:
            raise UnreadableBody from e

    return read


def _read_tree(path: FieldPath, body: bytes) -> Value:
    try:
        return path.read(decode(body))
    except TooManyValues as e:
        raise UnreadableBody from e


def _type_of(steps: Sequence[Step]) -> Any:
    """A type that has nothing but the field, so that the decoder skips everything else."""
    field_type: Any = Any
    for step in reversed(steps):
        if isinstance(step, str):
            field_type = msgspec.defstruct(
                "Part", [(_NAME, field_type, None)], rename={_NAME: step}, gc=False
            )
        else:
            field_type = list[field_type]
        field_type |= None
    return field_type


def _find_plain(here: Any, path: FieldPath) -> Value:
    """Find a value below names alone: a body is read for each object of the fleet."""
    for _ in path.steps:
        if here is None:
            return None
        here = here.below
    return one_of(here)


def _find(tree: Any, path: FieldPath) -> Value:
    scalars = tuple(map(one_of, _walk([tree], path.steps)))
    return scalars if path.is_many else (scalars[0] if scalars else None)


def _walk(here: list[Any], steps: Sequence[Step]) -> list[Any]:
    for step in steps:
        if len(here) > MAX_VALUES:
            raise UnreadableBody
        if isinstance(step, str):
            here = [getattr(value, _NAME) for value in here if value is not None]
        elif isinstance(step, Special):
            here = [element for elements in here if elements is not None for element in elements]
        else:
            here = [value[step] for value in here if value is not None and step < len(value)]
    if len(here) > MAX_VALUES:
        raise UnreadableBody
    return here
