"""Finalizers of an object: names that keep it until their controllers have cleaned up.

The functions read objects and change nothing; `Cluster.add_finalizer` and `remove_finalizer` write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def finalizers_of(obj: Mapping[str, Any]) -> list[str]:
    """All finalizers of an object."""
    return list(cast("list[str]", obj["metadata"].get("finalizers") or []))


def has_finalizer(obj: Mapping[str, Any], finalizer: str) -> bool:
    """Whether a finalizer is on an object."""
    return finalizer in finalizers_of(obj)


def with_finalizer(obj: Mapping[str, Any], finalizer: str) -> list[str]:
    """The finalizers of an object and this one, once."""
    finalizers = finalizers_of(obj)
    return finalizers if finalizer in finalizers else [*finalizers, finalizer]


def without_finalizer(obj: Mapping[str, Any], finalizer: str) -> list[str]:
    """The finalizers of an object except this one."""
    return [name for name in finalizers_of(obj) if name != finalizer]
