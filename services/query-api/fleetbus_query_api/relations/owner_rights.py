"""The right that it takes to get an owner, which objects name by group and kind (rule A1)."""

from __future__ import annotations

from fleetbus_proto.resources import CORE
from fleetbus_query_api.access.authorise import Right
from fleetbus_query_api.catalog.catalog import KnownFleet, KnownResource


def right_to_get(
    fleet: KnownFleet, group: str, kind: str, namespace: str, name: str
) -> tuple[KnownResource | None, Right]:
    """The resource of a kind, if the fleet has it, and the right to get an object of it.

    Of an unknown kind the right is a likely one: a review must be made all the same, because the
    time of an answer must not tell what there is (rule A2).
    """
    group = group or CORE
    resource = next(
        (
            resource
            for resource in fleet.resources
            if (resource.group, resource.kind) == (group, kind)
        ),
        None,
    )
    if resource is None:
        return None, Right("get", group, f"{kind.lower()}s", namespace, name)
    return resource, Right(
        "get", group, resource.plural, namespace if resource.namespaced else "", name
    )
