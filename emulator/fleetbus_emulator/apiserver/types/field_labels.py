"""The fields by which objects of a type can be selected, and the errors for all others.

As the conversion functions of Kubernetes 1.34 have them, read off a real server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.types.served import Served


@dataclass(frozen=True, slots=True)
class Selectable:
    """A field by which objects are selected.

    Attributes:
        path: Where it is in the stored object.
        absent: The text of an object without it: its Go type's zero value.
    """

    path: str
    absent: str = ""


def _fields(*names: str, **zeros: str) -> dict[str, Selectable]:
    return {name: Selectable(name, zeros.get(name.rpartition(".")[2], "")) for name in names}


NAME = _fields("metadata.name")
METADATA = _fields("metadata.name", "metadata.namespace")
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_OF_TYPES: Mapping[tuple[str, str], Mapping[str, Selectable]] = {
    ("", "pods"): METADATA
    | _fields(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
        hostNetwork="false",
    ),
    ("", "nodes"): NAME | _fields("spec.unschedulable", unschedulable="false"),
    ("", "namespaces"): NAME | _fields("status.phase"),
    ("", "secrets"): METADATA | _fields("type"),
    ("", "services"): METADATA | _fields("spec.clusterIP", "spec.type"),
    ("", "replicationcontrollers"): METADATA | _fields("status.replicas", replicas="0"),
    ("", "events"): METADATA
    | _fields(*(f"involvedObject.{name}" for name in _REFERENCE))
    | _fields("reason", "reportingComponent", "source", "type"),
    ("events.k8s.io", "events"): METADATA
    | {f"regarding.{name}": Selectable(f"involvedObject.{name}") for name in _REFERENCE}
    | _fields("reason", "type")
    | {"reportingController": Selectable("reportingComponent")},
    ("batch", "jobs"): METADATA | {"status.successful": Selectable("status.succeeded", absent="0")},
}
"""The types that have more than METADATA, or less."""


def selectable_fields(served: Served) -> Mapping[str, Selectable]:
    """The fields by which objects of a type are selected, by name."""
    if served.rtype.custom:
        metadata = METADATA if served.rtype.namespaced else NAME
        return {**metadata, **_fields(*served.version.selectable)}
    return _OF_TYPES.get((served.rtype.group, served.rtype.plural), METADATA)


def refusal(served: Served, name: str) -> str:
    """The message of a server for a field that is not selectable."""
    key = served.rtype.group, served.rtype.plural
    if key == ("batch", "jobs"):
        return f'field label "{name}" not supported for Job'
    if served.rtype.custom or key in _OF_TYPES:
        return f"field label not supported: {name}"
    return f'"{name}" is not a known field selector: only {_quoted(METADATA)}'


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
