"""The types that a plan would define: its CRDs serve them before any server does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from fleetbus.kube.client import Object
from fleetbus_proto.resources import Resource


class Definitions:
    """The CRDs among the planned writes."""

    def __init__(self) -> None:
        self._served: dict[str, dict[str, Object]] = {}
        """Discovery path → plural → entry of the discovery document."""
        self._new: list[str] = []

    def establish(self, tree: Object) -> Object:
        """Note a CRD, and return it as established; other objects stay as they are."""
        if tree.get("kind") != "CustomResourceDefinition":
            return tree
        spec = cast("Object", tree["spec"])
        names = spec["names"]
        entry = {
            "name": names["plural"],
            "kind": names["kind"],
            "singularName": names.get("singular", ""),
            "namespaced": spec.get("scope") == "Namespaced",
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        }
        for version in cast("list[Object]", spec.get("versions") or []):
            if version.get("served"):
                path = f"/apis/{spec['group']}/{version['name']}"
                self._served.setdefault(path, {})[names["plural"]] = entry
                self._new.append(path.removeprefix("/apis/"))
        conditions = [{"type": kind, "status": "True"} for kind in ("NamesAccepted", "Established")]
        status: Mapping[str, Any] = tree.get("status") or {}
        return {**tree, "status": {**status, "conditions": conditions}}

    def take_new(self) -> list[str]:
        """The group versions that were defined since the last call."""
        taken, self._new = self._new, []
        return taken

    @property
    def are_any(self) -> bool:
        """Whether the plan defines a type."""
        return bool(self._served)

    def serves(self, path: str) -> bool:
        """Whether a discovery document would be there."""
        return path in self._served

    def has(self, resource: Resource) -> bool:
        """Whether a type would be served."""
        path = f"/apis/{resource.group}/{resource.version}"
        return resource.plural in self._served.get(path, {})

    def extend(self, path: str, document: Object) -> Object:
        """Add the planned types to a discovery document."""
        listed = cast("list[Object]", document.get("resources") or [])
        names = {entry.get("name") for entry in listed}
        added = [entry for name, entry in self._served[path].items() if name not in names]
        return {**document, "resources": [*listed, *added]}
