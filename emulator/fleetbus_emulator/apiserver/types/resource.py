"""A served resource type: its names, versions, subresources and peculiarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.types.conversions import Conversion
from fleetbus_emulator.apiserver.types.merge_rules import BUILTIN, MergeRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetbus_emulator.apiserver.definitions.schema import Schema

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
SUBRESOURCE_VERBS = ("get", "patch", "update")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the Table form."""

    name: str
    type: str = "string"
    priority: int = 0
    json_path: str = ""
    format: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """The fields of a custom resource that the Scale subresource shows."""

    spec_replicas: tuple[str, ...]
    status_replicas: tuple[str, ...]
    selector: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TypeVersion:
    """One served version of a type.

    Attributes:
        schema: Prunes, defaults and validates custom resources; None for built-in types.
        conversion: To and from what is stored; None where the fields are the same.
        selectable: The paths that field selectors may name beside name and namespace.
    """

    name: str
    subresources: frozenset[str] = frozenset()
    columns: tuple[Column, ...] = ()
    scale: ScalePaths | None = None
    schema: Schema | None = None
    merge_rule: MergeRule = BUILTIN
    conversion: Conversion | None = None
    selectable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ResourceType:
    """A resource type as discovery lists it; all its versions share one store.

    Attributes:
        has_generation: metadata.generation is kept.
        unconditional_update: A PUT without resourceVersion is accepted.
        create_on_update: A PUT on a missing object creates it.
        store: Where objects live, (group, plural); differs from the type's own for events.k8s.io.
        storage: The version of stored objects, if it is not the first of `versions`.
        answers_object: DELETE returns the object even when it is removed at once.
        deletes_collection: All of them can be deleted by one request.
    """

    group: str
    plural: str
    kind: str
    versions: Mapping[str, TypeVersion]
    namespaced: bool = True
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    custom: bool = False
    has_generation: bool = False
    unconditional_update: bool = True
    create_on_update: bool = False
    answers_object: bool = False
    deletes_collection: bool = True
    store: tuple[str, str] = ("", "")
    storage: str = ""

    @property
    def storage_version(self) -> str:
        """The version that stored objects carry; it need not be served."""
        return self.storage or next(iter(self.versions))

    @property
    def qualified(self) -> str:
        """`widgets.example.com`, or `pods` in the core group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """`Widget.example.com`, or `Pod` in the core group."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def api_version(self, version: str) -> str:
        """`example.com/v1`, or `v1` in the core group."""
        return f"{self.group}/{version}" if self.group else version

    def key(self, namespace: str | None, name: str) -> tuple[str, str]:
        """The key of an object in the store."""
        return (namespace or "" if self.namespaced else "", name)


JsonObject = dict[str, Any]
