"""CustomResourceDefinitions of types whose objects may hold anything."""

from __future__ import annotations

from typing import Any, Final

CRDS: Final = "apiextensions.k8s.io/v1/customresourcedefinitions"
FREE: Final[dict[str, Any]] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""A schema that allows everything."""


def definition(
    group: str, plural: str, kind: str, *versions: str, scope: str = "Namespaced", **more: Any
) -> dict[str, Any]:
    """The CRD of a type.

    Args:
        group: its group.
        plural: its plural.
        kind: its kind.
        versions: those that are served, `v1` if none is named; the last one is stored.
        scope: Namespaced or Cluster.
        more: of each version.
    """
    named = versions or ("v1",)
    return {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [
                {
                    "name": name,
                    "served": True,
                    "storage": name == named[-1],
                    "schema": {"openAPIV3Schema": FREE},
                    **more,
                }
                for name in named
            ],
        },
    }
