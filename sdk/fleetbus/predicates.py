"""Ready-made predicates for `Controller.watch` and `watch_owned`.

controller.watch("apps/v1/deployments", predicate=fleetbus.predicates.generation_changed)

They compare the last state that this controller saw with the current state. New objects and
deletions always pass.
"""

from __future__ import annotations

from fleetbus.controller.filters import ComposedPredicate, Predicate
from fleetbus.kube.client import Object


def generation_changed(old: Object | None, new: Object | None) -> bool:
    """Pass changes of `metadata.generation`: of the spec, or the start of a deletion.

    Changes of status and labels do not pass, nor changes of annotations, except on Deployments. An
    object without a generation, like a ConfigMap or a Secret, always passes.
    """
    if old is None or new is None:
        return True
    generation = new["metadata"].get("generation")
    return generation is None or generation != old["metadata"].get("generation")


def labels_changed(old: Object | None, new: Object | None) -> bool:
    """Pass changes of a label."""
    return _differs("labels", old, new)


def annotations_changed(old: Object | None, new: Object | None) -> bool:
    """Pass changes of an annotation.

    The annotation `kubectl.kubernetes.io/last-applied-configuration` does not count: the watcher
    leaves it out.
    """
    return _differs("annotations", old, new)


def any_of(*predicates: Predicate) -> Predicate:
    """Pass changes that at least one of these predicates passes.

    Raises:
        ConfigError: one of them cannot be called as a predicate, or there is none.
    """
    return ComposedPredicate("any_of", any, predicates)


def all_of(*predicates: Predicate) -> Predicate:
    """Pass changes that all of these predicates pass.

    Raises:
        ConfigError: one of them cannot be called as a predicate, or there is none.
    """
    return ComposedPredicate("all_of", all, predicates)


def _differs(field: str, old: Object | None, new: Object | None) -> bool:
    if old is None or new is None:
        return True
    return (old["metadata"].get(field) or {}) != (new["metadata"].get(field) or {})
