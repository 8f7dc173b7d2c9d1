"""The record on a parent: in which clusters it may have children, and the finalizer.

One annotation per controller, so that several may keep children of one parent; the finalizer is
shared, and goes with the last of them.
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
    """The record of one controller; it reads parents and makes patches, and changes nothing.

    Args:
        controller: its name.
    """

    def __init__(self, controller: str) -> None:
        self._key = f"{OWN_PREFIX}{label_value(f'children.{controller}')}"

    def is_on(self, parent: Object) -> bool:
        """Whether a parent has the record."""
        return self._key in _annotations(parent)

    def clusters(self, parent: Object) -> set[str]:
        """The clusters where a parent may have children."""
        return set(_annotations(parent).get(self._key, "").split(",")) - {""}

    def is_held(self, parent: Object) -> bool:
        """Whether our finalizer is on a parent."""
        return has_finalizer(parent, FINALIZER)

    def patch(self, parent: Object, clusters: set[str]) -> Object | None:
        """The merge patch that makes these clusters the record; None if they are.

        The finalizer is there as long as some controller's record is; those of others are kept.
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
