"""What one round wants, before anything is compared or written: placement and rendering."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fleetbus.clusters.info import ClusterInfo
from fleetbus_distributor.customize import render_for
from fleetbus_distributor.errors import CustomizeError, RenderError
from fleetbus_distributor.model import Spec
from fleetbus_distributor.place import Member, Placed, place
from fleetbus_distributor.render import Context, Object, ObjectRef, reference


@dataclass(frozen=True, slots=True)
class Problem:
    """Why nothing can be rendered for a cluster."""

    reason: str
    message: str


@dataclass(slots=True)
class Draft:
    """Everything a MultiClusterResource wants, per cluster."""

    placed: Placed
    objects: dict[str, list[Object]] = field(default_factory=dict[str, list[Object]])
    problems: dict[str, Problem] = field(default_factory=dict[str, Problem])
    warnings: list[str] = field(default_factory=list[str])

    @property
    def wanted(self) -> dict[str, list[ObjectRef]]:
        """The objects by name."""
        return {name: [reference(obj) for obj in objects] for name, objects in self.objects.items()}


def draft(spec: Spec, clusters: Iterable[ClusterInfo], hub: str) -> Draft:
    """Place and render; a cluster that cannot be rendered does not stop the others."""
    members = [Member(info.name, info.labels) for info in clusters]
    result = Draft(place(spec.placement, members, hub))
    for member in result.placed.targets:
        context = Context(member.name, member.labels, spec.vars)
        try:
            result.objects[member.name], warnings = render_for(spec, context)
        except RenderError as error:
            result.problems[member.name] = Problem("RenderFailed", str(error))
        except CustomizeError as error:
            result.problems[member.name] = Problem("PatchFailed", str(error))
        else:
            result.warnings += warnings
    return result
