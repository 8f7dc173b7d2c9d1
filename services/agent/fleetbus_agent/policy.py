"""The local policy: it bounds what the hub may do, beside the rights of the agent's account."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from fleetbus_agent.attributes import Attributes

VERBS: Final = (
    *("get", "list", "watch", "create", "update", "patch"),
    *("delete", "deletecollection", "impersonate"),
)
ANY: Final = "*"
_READING: Final = ("get", "list", "watch", "impersonate")
_NEVER: Final = ("exec", "attach", "portforward", "proxy")
"""Subresources that lead to processes and other servers; fleetbus needs none of them."""
_SELF_REVIEWS: Final = (
    "authorization.k8s.io/selfsubjectaccessreviews",
    "authorization.k8s.io/selfsubjectrulesreviews",
    "authentication.k8s.io/selfsubjectreviews",
)
"""Created to ask about one's own rights; nothing is stored."""
_RESOURCE: Final = re.compile(r"\*|[a-z0-9.-]+/(\*|[a-z0-9.-]+(/(\*|[a-z0-9-]+))?)")


class InvalidRule(ValueError):
    """The text of a rule is wrong; it says how."""


class Rule(NamedTuple):
    """Some verbs on some resources."""

    verbs: tuple[str, ...]
    resources: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse VERBS:RESOURCES, like `get,list:apps/deployments,core/secrets` or `*:*`.

        Raises:
            InvalidRule: it is something else.
        """
        verbs_text, colon, resources_text = text.partition(":")
        verbs, resources = (
            tuple(word.strip() for word in part.split(",")) for part in (verbs_text, resources_text)
        )
        if not colon:
            raise InvalidRule(f"{text!r} is not VERBS:RESOURCES, like get,list:apps/deployments")
        for verb in verbs:
            if verb != ANY and verb not in VERBS:
                raise InvalidRule(f"{verb!r} in {text!r} is none of {ANY}, {', '.join(VERBS)}")
        for resource in resources:
            if not _RESOURCE.fullmatch(resource):
                raise InvalidRule(
                    f"{resource!r} in {text!r} is not GROUP/PLURAL, like apps/deployments or"
                    f" core/secrets, with /SUBRESOURCE for one, or {ANY}"
                )
        return cls(verbs, resources)

    def covers(self, verb: str, resource: str, *, with_subresources: bool) -> bool:
        """Whether the rule is about this verb on this resource.

        Args:
            verb: of the request.
            resource: of the request, with its subresource.
            with_subresources: whether a rule on a resource is about its subresources, too.
        """
        if ANY not in self.verbs and verb not in self.verbs:
            return False
        return any(_covers(each, resource, with_subresources) for each in self.resources)


def _covers(rule: str, resource: str, with_subresources: bool) -> bool:
    if rule in (ANY, resource):
        return True
    if rule.endswith(f"/{ANY}"):
        return resource.startswith(rule[:-1])
    return with_subresources and resource.startswith(f"{rule}/")


class Policy:
    """The local policy: a request passes if a rule allows it and none denies it.

    Args:
        allow: the rules that allow; a subresource is named like in RBAC, or meant by `*`.
        deny: the rules that deny; they go before, and hold for subresources, too.
        read_only: whether nothing may be changed, whatever the rules say.
    """

    def __init__(
        self, allow: Sequence[Rule], deny: Sequence[Rule] = (), *, read_only: bool = False
    ) -> None:
        self._allow = allow
        self._deny = deny
        self._read_only = read_only

    def problem(self, attributes: Attributes) -> str:
        """Why a request does not pass; empty if it does."""
        if not attributes.is_resource:
            return "" if attributes.verb == "get" else "the API itself can only be read"
        verb, resource = attributes.verb, attributes.resource
        if resource.count("/") > 1 and resource.split("/")[2] in _NEVER:
            return f"{resource} is never passed on"
        if self._read_only and verb not in _READING and resource not in _SELF_REVIEWS:
            return f"{verb} of {resource}: the agent is read-only"
        if _any_covers(self._deny, verb, resource, with_subresources=True):
            return f"{verb} of {resource} is denied by the agent's policy"
        if not _any_covers(self._allow, verb, resource, with_subresources=False):
            return f"{verb} of {resource} is not allowed by the agent's policy"
        return ""


def _any_covers(
    rules: Iterable[Rule], verb: str, resource: str, *, with_subresources: bool
) -> bool:
    return any(rule.covers(verb, resource, with_subresources=with_subresources) for rule in rules)
