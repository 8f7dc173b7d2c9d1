"""Asks an API server which rights the caller lacks, before anything is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from fleetbus.clusters.fields import map_of
from fleetbus.kube.client import KubeClient, Object
from fleetbus_proto.resources import CORE, Resource

_REVIEWS: Final = "authorization.k8s.io/v1/selfsubjectaccessreviews"


class Right(NamedTuple):
    """A verb on a resource, in a namespace and for a name, if there are any."""

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        group, _, plural = self.resource
        called = plural if group == CORE else f"{plural}.{group}"
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {called}{f' {self.name}' if self.name else ''}{where}"


async def missing_rights(client: KubeClient, wanted: Iterable[Right]) -> list[Right]:
    """The rights that the user of the client does not have.

    Raises:
        KubeError: the server refused, or did not answer.
    """
    rights = list(dict.fromkeys(wanted))
    allowed = await asyncio.gather(*(_is_allowed(client, right) for right in rights))
    return [right for right, is_allowed in zip(rights, allowed, strict=True) if not is_allowed]


async def _is_allowed(client: KubeClient, right: Right) -> bool:
    plural, _, subresource = right.resource.plural.partition("/")
    attributes = {
        "verb": right.verb,
        "group": "" if right.resource.group == CORE else right.resource.group,
        "resource": plural,
        "subresource": subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    answer = await client.create(_REVIEWS, review)
    return map_of(answer.get("status")).get("allowed") is True
