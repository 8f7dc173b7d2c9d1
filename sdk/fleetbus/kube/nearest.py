"""What somebody may have meant who has named a resource that is not there."""

from __future__ import annotations

from collections.abc import Collection
from difflib import SequenceMatcher, get_close_matches

from fleetbus.kube.resource_names import with_plural
from fleetbus_proto.resources import Resource, ResourceName

_ALIKE = 0.7


def nearest(resource: Resource, known: Collection[str]) -> str:
    """The key among these whose name is nearest; "" if none is near.

    First what the name is a singular or short name of, then what is spelt alike, then the group.

    Args:
        resource: what was named.
        known: resource keys, like `apps/deployments`.
    """
    for group in (resource.group, None):
        named = with_plural(ResourceName(group, None, resource.plural))
        if f"{named.group}/{named.plural}" in known:
            return f"{named.group}/{named.plural}"
    groups: dict[str, list[str]] = {}
    for key in sorted(known):
        group, _, plural = key.rpartition("/")
        groups.setdefault(plural, []).append(group)
    for plural in get_close_matches(resource.plural, groups, n=1, cutoff=_ALIKE):
        group = max(groups[plural], key=lambda one: _likeness(one, resource.group))
        return f"{group}/{plural}"
    return ""


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()
