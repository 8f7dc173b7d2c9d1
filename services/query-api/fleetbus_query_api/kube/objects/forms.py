"""The forms of an answer: the objects themselves, or their metadata; see `table_form`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fleetbus.snapshot import Entry
from fleetbus_query_api.kube.objects.object_bytes import ObjectBytes

JsonObject = Mapping[str, Any]


class Form(Protocol):
    """Form in which objects are sent."""

    @property
    def key(self) -> Hashable:
        """Equal for forms of a resource that send an object alike."""
        ...

    def item(self, entry: Entry) -> bytes:
        """One object of a list."""
        ...

    def items(self, entries: Sequence[Entry]) -> Callable[[Entry], bytes]:
        """Render the objects of a page of a list."""
        ...

    def opening(self, metadata: JsonObject) -> bytes:
        """The bytes before the objects of a list."""
        ...

    def bookmark(self, metadata: JsonObject) -> bytes:
        """The object of a bookmark, which is none but for its metadata."""
        ...

    def answer(self, entries: Sequence[Entry]) -> bytes:
        """The answer to a get: the same-named objects of so many clusters, at least one."""
        ...


CLOSING = b"]}"
"""The bytes behind the objects of a list, in every form."""


class WholeObjects:
    """The objects themselves."""

    key = "objects"

    def __init__(self, of: ObjectBytes, list_kind: str) -> None:
        self._of = of
        self._list_kind = list_kind
        self.item = of.whole

    def items(self, entries: Sequence[Entry]) -> Callable[[Entry], bytes]:  # noqa: ARG002
        """Render each object alone."""
        return self.item

    def opening(self, metadata: JsonObject) -> bytes:
        """The bytes before the objects of a list."""
        return open_list(self._list_kind, self._of.api_version, metadata)

    def bookmark(self, metadata: JsonObject) -> bytes:
        """An object of the kind."""
        return _bookmark(self._of.kind, self._of.api_version, metadata)

    def answer(self, entries: Sequence[Entry]) -> bytes:
        """The object; several as a List of the generic kind, which no typed client expects."""
        if len(entries) == 1:
            return self.item(entries[0])
        items = b",".join(map(self.item, entries))
        return open_list("List", "v1", {"resourceVersion": ""}) + items + CLOSING


class MetadataOnly:
    """The metadata of the objects (PartialObjectMetadata)."""

    def __init__(self, of: ObjectBytes, version: str) -> None:
        self.key = ("metadata", version)
        self._of = of
        self._version = version

    def item(self, entry: Entry) -> bytes:
        """One object of a list."""
        return self._of.metadata(entry, self._version)

    def items(self, entries: Sequence[Entry]) -> Callable[[Entry], bytes]:  # noqa: ARG002
        """Render each object alone."""
        return self.item

    def opening(self, metadata: JsonObject) -> bytes:
        """The bytes before the objects of a list."""
        api_version = f"meta.k8s.io/{self._version}"
        return open_list("PartialObjectMetadataList", api_version, metadata)

    def bookmark(self, metadata: JsonObject) -> bytes:
        """A PartialObjectMetadata."""
        return _bookmark("PartialObjectMetadata", f"meta.k8s.io/{self._version}", metadata)

    def answer(self, entries: Sequence[Entry]) -> bytes:
        """The object; several as a list."""
        if len(entries) == 1:
            return self.item(entries[0])
        items = b",".join(map(self.item, entries))
        return self.opening({"resourceVersion": ""}) + items + CLOSING


def open_list(kind: str, api_version: str, metadata: JsonObject) -> bytes:
    """The bytes before the items of a list."""
    head = {"kind": kind, "apiVersion": api_version, "metadata": metadata}
    return msgspec.json.encode(head)[:-1] + b',"items":['


def _bookmark(kind: str, api_version: str, metadata: JsonObject) -> bytes:
    return msgspec.json.encode({"kind": kind, "apiVersion": api_version, "metadata": metadata})
