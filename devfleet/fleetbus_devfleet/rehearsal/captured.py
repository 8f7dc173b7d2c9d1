"""The MultiClusterResource as it was captured: the state that its rehearsal starts from.

A capture lacks managedFields, so on the copies the distributor owns no field yet, and its first
write to each object is one that the fleet would not see. It makes these writes before the edit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import orjson

from fleetbus.kube.json_fields import many, mapping, text
from fleetbus_proto.resources import CORE

if TYPE_CHECKING:
    from fleetbus_cli.capture.reading import Capture
    from fleetbus_devfleet.rehearsal.manifest import Manifest

JsonObject = dict[str, Any]
_KEY = "fleetbus.dev/multiclusterresources"
_COMPLETE = "Complete"
_TAKEN_OVER = frozenset({"FieldConflict", "Drifted"})
"""Reasons of a cluster that depend on the owners of fields, which a capture lacks."""
_COUNTED = "so each of its objects counts as changed"


@dataclass(frozen=True, slots=True)
class CapturedResource:
    """A MultiClusterResource of a capture."""

    resource: JsonObject

    @classmethod
    def find(cls, capture: Capture, manifest: Manifest) -> Self | None:
        """Find the one of the manifest; None if the hub had none when it was captured."""
        place = (capture.header.hub, _KEY, manifest.namespace, manifest.name)
        for obj in capture.objects():
            if (obj.cluster, obj.type.key, obj.namespace, obj.name) == place and obj.body:
                return cls(cast("JsonObject", orjson.loads(obj.body)))
        return None

    @property
    def why_unsettled(self) -> str:
        """Why the copies cannot be brought to its state; empty if they can."""
        spec = mapping(self.resource, "spec")
        if not (spec.get("template") or spec.get("templates")):
            return f"a capture hides templates that may be Secrets, {_COUNTED}"
        if mapping(spec, "policy").get("suspend"):
            return f"it was suspended when it was captured, {_COUNTED}"
        return ""

    @property
    def settled_spec(self) -> JsonObject:
        """Its spec, without the waves that had not opened."""
        spec = mapping(self.resource, "spec")
        rollout = mapping(spec, "rollout")
        phase = text(self.resource, "status", "rollout", "phase")
        if "rollout" not in spec or phase in ("", _COMPLETE):
            return spec
        return {**spec, "rollout": {**rollout, "paused": True}}

    def notes(self) -> list[str]:
        """Describe what the copies cannot show, for people."""
        clusters = many(self.resource, "status", "clusters")
        names = [
            text(cluster, "name") for cluster in clusters if text(cluster, "reason") in _TAKEN_OVER
        ]
        taken = (
            f"others have changed fields in {', '.join(names)}: a capture lacks the owners of"
            " fields, so the copies take these over before the edit, uncounted; `fleetbus plan -f"
            " FILE` shows the conflicts of the fleet itself"
        )
        return [*([self.why_unsettled] if self.why_unsettled else []), *([taken] if names else [])]


def missing_types(capture: Capture, manifest: Manifest) -> list[str]:
    """Describe which types the capture lacks that the rehearsal begins with, for people."""
    captured = [resource for cluster in capture.header.clusters for resource in cluster.resources]
    kinds = {(resource.group, resource.kind) for resource in captured}
    notes: list[str] = []
    if _KEY not in {resource.resource.key for resource in captured}:
        notes.append(
            "the capture has no MultiClusterResources, so this is a first deployment:"
            " `fleetbus capture -r multiclusterresources` adds them"
        )
    templates = [
        (text(template, "apiVersion"), text(template, "kind")) for template in manifest.templates
    ]
    missing = {
        kind
        for api_version, kind in templates
        if (api_version.rpartition("/")[0] or CORE, kind) not in kinds
    }
    if missing:
        listed = ", ".join(sorted(missing))
        notes.append(f"the capture has no objects of {listed}, so each of them counts as created")
    return notes
