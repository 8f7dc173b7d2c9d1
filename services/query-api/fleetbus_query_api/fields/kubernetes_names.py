"""Field selectors of Kubernetes that do not name a field, or mean its default where it is absent.

An API server selects nodes by `spec.unschedulable=false` although no such node has the field. All
other paths mean the same here and there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleetbus.kube.field_paths import FieldPath
from fleetbus.kube.selectors import FieldRequirement, FieldSelector


@dataclass(frozen=True, slots=True)
class _Field:
    """The field that a path of Kubernetes means.

    Attributes:
        default: its value where it is absent; empty for none.
    """

    path: FieldPath
    default: str = ""


_KNOWN: Final[Mapping[tuple[str, FieldPath], _Field]] = {
    (key, FieldPath.parse(path)): _Field(FieldPath.parse(field), default)
    for key, path, field, default in (
        ("core/nodes", "spec.unschedulable", "spec.unschedulable", "false"),
        ("core/pods", "spec.host", "spec.nodeName", ""),
        ("core/pods", "spec.hostNetwork", "spec.hostNetwork", "false"),
        ("core/events", "source", "source.component", ""),
        ("batch/jobs", "status.successful", "status.succeeded", "0"),
    )
}


def translate_fields(key: str, fields: FieldSelector) -> FieldSelector:
    """A selector as an API server understands it, for one of any paths.

    Args:
        key: of the resource.
        fields: the selector.
    """
    return FieldSelector(tuple(_translate(key, each) for each in fields.requirements))


def _translate(key: str, requirement: FieldRequirement) -> FieldRequirement:
    field = _KNOWN.get((key, requirement.path))
    if field is None:
        return requirement
    values = requirement.values
    if field.default and field.default in values:
        values = (*values, "")  # an absent field equals the empty string
    return replace(requirement, path=field.path, values=values)
