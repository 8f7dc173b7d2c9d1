"""Manifests: the objects of a YAML file, as kubectl reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

JsonObject = dict[str, Any]
LONGEST_QUOTE = 100


def read_manifests(path: Path | str) -> Generator[JsonObject]:
    """The objects of a YAML file, in order; those of a List one by one.

    Raises:
        ValueError: something in it is no object.
    """
    documents = yaml.safe_load_all(Path(path).read_text(encoding="utf-8"))
    return _objects_of(documents, str(path))


def _objects_of(documents: Iterable[object], path: str) -> Generator[JsonObject]:
    for document in documents:
        if document is None:  # nothing between two lines of dashes
            continue
        obj = _as_object(document)
        if obj is None:
            text = repr(document)[:LONGEST_QUOTE]
            raise ValueError(f"{path}: no object with apiVersion and kind: {text}")
        if obj["kind"] == "List":
            yield from _objects_of(obj.get("items") or [], path)
        else:
            yield obj


def _as_object(document: object) -> JsonObject | None:
    obj = cast("JsonObject", document) if isinstance(document, dict) else {}
    named = all(isinstance(obj.get(field), str) for field in ("apiVersion", "kind"))
    return obj if named else None
