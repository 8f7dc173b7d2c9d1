"""The annotation of a parent with the clusters of its children, and the finalizer.

There is one annotation per controller, so that several can keep children of one parent; they share
the finalizer, and the last one removes it.
"""

from __future__ import annotations

from typing import Final, cast

from fleetbus.children.marks import OWN_PREFIX
from fleetbus.finalizers import (
    finalizers_of,
    has_finalizer,
    with_finalizer,
    without_finalizer,
)
from fleetbus.kube.client import Object
from fleetbus.ownership import FINALIZER, label_value

_PREFIX: Final = f"{OWN_PREFIX}children."


class ParentAnnotation:
    """The annotation of one controller; reads parents and makes patches, but sends nothing.

    Args:
        controller: its name.
    """

    def __init__(self, controller: str) -> None:
        self._key = f"{OWN_PREFIX}{label_value(f'children.{controller}')}"

    def is_on(self, parent: Object) -> bool:
        """Whether a parent has the annotation."""
        return self._key in _annotations(parent)

    def clusters(self, parent: Object) -> set[str]:
        """Return the clusters where a parent may have children."""
        return set(_annotations(parent).get(self._key, "").split(",")) - {""}

    def has_finalizer(self, parent: Object) -> bool:
        """Whether a parent has our finalizer."""
        return has_finalizer(parent, FINALIZER)

    def patch(self, parent: Object, clusters: set[str]) -> Object | None:
        """Make the merge patch that records these clusters; None if they are recorded already.

        The finalizer stays while any controller's annotation does; other finalizers are kept.
        """
        desired = finalizers = finalizers_of(parent)
        others = any(key.startswith(_PREFIX) and key != self._key for key in _annotations(parent))
        if clusters:
            desired = with_finalizer(parent, FINALIZER)
        elif not others:
            desired = without_finalizer(parent, FINALIZER)
        if desired == finalizers and clusters == self.clusters(parent):
            return None
        text = ",".join(sorted(clusters)) or None
        return {"metadata": {"finalizers": desired, "annotations": {self._key: text}}}


def _annotations(parent: Object) -> dict[str, str]:
    return cast("dict[str, str]", parent["metadata"].get("annotations") or {})
