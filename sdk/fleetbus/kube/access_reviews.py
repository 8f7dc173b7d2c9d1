"""Asks an API server which rights a user lacks: the caller, or another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import orjson

from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.requests import Call
from fleetbus_proto.resources import CORE, Resource

_GROUP: Final = "authorization.k8s.io/v1"
_VERSION: Final = "v1"
"""Version of resources in rules, which name none."""
_WITHIN: Final = timedelta(seconds=5)
_AT_ONCE: Final = 8


class Right(NamedTuple):
    """A verb on a resource, in a namespace and for a name, if there are any.

    Attributes:
        resource: its plural may have a subresource, like `clusters/status`; the version has no
            effect.
    """

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        group, _, plural = self.resource
        called = plural if group == CORE else f"{plural}.{group}"
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {called}{f' {self.name}' if self.name else ''}{where}"


def rights_of(rules: Iterable[Mapping[str, Any]], namespace: str = "") -> list[Right]:
    """Every right that PolicyRules grant, of a ClusterRole or in a namespace."""
    return [
        Right(verb, Resource(group or CORE, _VERSION, resource), namespace, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or ("",)
        for verb in rule["verbs"]
    ]


async def missing_rights(
    client: KubeClient,
    required: Iterable[Right],
    *,
    user: str = "",
    groups: Sequence[str] = (),
) -> list[Right]:
    """The rights that a user does not have.

    Args:
        client: of the API server.
        required: what is asked for.
        user: empty for the user of the client; another one needs the right to create
            SubjectAccessReviews.
        groups: those of the other user.

    Raises:
        KubeError: the server refused, or did not answer.
        ConfigError: the credentials of the client are unusable.
    """
    turns = asyncio.Semaphore(_AT_ONCE)
    subject: dict[str, Any] = {"user": user, "groups": list(groups)} if user else {}

    async def is_allowed(right: Right) -> bool:
        async with turns:
            return await _is_allowed(client, right, subject)

    rights = list(dict.fromkeys(required))
    allowed = await asyncio.gather(*map(is_allowed, rights))
    return [right for right, is_there in zip(rights, allowed, strict=True) if not is_there]


async def _is_allowed(client: KubeClient, right: Right, subject: Mapping[str, Any]) -> bool:
    plural, _, subresource = right.resource.plural.partition("/")
    attributes = {
        "verb": right.verb,
        "group": "" if right.resource.group == CORE else right.resource.group,
        "resource": plural,
        "subresource": subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    kind = "SubjectAccessReview" if subject else "SelfSubjectAccessReview"
    review = {
        "apiVersion": _GROUP,
        "kind": kind,
        "spec": {
            **subject,
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        },
    }
    path = f"/apis/{_GROUP}/{kind.lower()}s"
    answer = await client.request(Call("POST", path, body=orjson.dumps(review), within=_WITHIN))
    try:
        return bool(orjson.loads(answer)["status"]["allowed"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        raise KubeError(0, "InvalidAnswer", f"the answer is no {kind}") from None
