"""The objects of rbac.authorization.k8s.io: as rules, what is filled in, what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.auth.access import Access
from fleetbus_emulator.apiserver.errors import Cause
from fleetbus_emulator.apiserver.json_tree import as_object, listing, mapping
from fleetbus_emulator.apiserver.types.field_errors import required, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonObject = dict[str, Any]
GROUP = "rbac.authorization.k8s.io"
EVERY = "*"
ROLE_KINDS = ("Role", "ClusterRole")
SUBJECT_KINDS = ("ServiceAccount", "User", "Group")


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule of a role."""

    verbs: frozenset[str]
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()

    def allows(self, access: Access) -> bool:
        """Whether the rule grants the access."""
        if EVERY not in self.verbs and access.verb not in self.verbs:
            return False
        if access.path:
            return any(covers_path(url, access.path) for url in self.urls)
        if EVERY not in self.groups and access.group not in self.groups:
            return False
        if self.names and access.name not in self.names:
            return False
        return covers_resource(self.resources, access.resource, access.subresource)


def covers_resource(resources: frozenset[str], resource: str, subresource: str) -> bool:
    """Whether a rule's resources contain one: by name, as `*`, or as `*/subresource`."""
    if EVERY in resources:
        return True
    if not subresource:
        return resource in resources
    return f"{resource}/{subresource}" in resources or f"*/{subresource}" in resources


def covers_path(url: str, path: str) -> bool:
    """Whether a rule's URL, perhaps with a `*` at its end, contains a path."""
    return url == path or (url.endswith(EVERY) and path.startswith(url.rstrip(EVERY)))


def rules_of(role: JsonObject) -> Iterator[PolicyRule]:
    """The rules of a Role or ClusterRole."""
    for rule in listing(role, "rules"):
        yield _rule(orjson.dumps(rule))


@lru_cache(maxsize=1000)
def _rule(encoded: bytes) -> PolicyRule:
    rule = orjson.loads(encoded)
    return PolicyRule(
        verbs=frozenset(listing(rule, "verbs")),
        groups=frozenset(listing(rule, "apiGroups")),
        resources=frozenset(listing(rule, "resources")),
        names=frozenset(listing(rule, "resourceNames")),
        urls=tuple(listing(rule, "nonResourceURLs")),
    )


# defaults ---------------------------------------------------------------------------------------


def binding_defaults(obj: JsonObject) -> None:
    """The API groups of the role and of the subjects."""
    ref = as_object(obj.get("roleRef"))
    if ref is not None and not ref.get("apiGroup"):
        ref["apiGroup"] = GROUP
    for subject in listing(obj, "subjects"):
        if subject.get("kind") in ("User", "Group") and not subject.get("apiGroup"):
            subject["apiGroup"] = GROUP


# validation -------------------------------------------------------------------------------------


def role_problems(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    """Validate a Role or ClusterRole."""
    del old
    causes: list[Cause] = []
    for index, rule in enumerate(listing(obj, "rules")):
        causes += _rule_problems(rule, f"rules[{index}]", namespaced=obj["kind"] == "Role")
    return causes


def _rule_problems(rule: JsonObject, field: str, *, namespaced: bool) -> list[Cause]:
    causes: list[Cause] = []
    if not listing(rule, "verbs"):
        causes.append(required(f"{field}.verbs", "verbs must contain at least one value"))
    urls = listing(rule, "nonResourceURLs")
    if urls:
        text = orjson.dumps(urls).decode()
        whys: list[str] = []
        if namespaced:
            whys.append("namespaced rules cannot apply to non-resource URLs")
        if any(listing(rule, name) for name in ("apiGroups", "resources", "resourceNames")):
            whys.append("rules cannot apply to both regular resources and non-resource URLs")
        at = f"{field}.nonResourceURLs"
        return causes + [Cause(at, f"Invalid value: {text}: {why}") for why in whys]
    if not listing(rule, "apiGroups"):
        why = "resource rules must supply at least one api group"
        causes.append(required(f"{field}.apiGroups", why))
    if not listing(rule, "resources"):
        why = "resource rules must supply at least one resource"
        causes.append(required(f"{field}.resources", why))
    return causes


def binding_problems(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    """Validate a RoleBinding or ClusterRoleBinding."""
    ref: JsonObject = mapping(obj, "roleRef")
    causes: list[Cause] = []
    if ref.get("apiGroup", GROUP) != GROUP:
        causes.append(unsupported("roleRef.apiGroup", ref["apiGroup"], (GROUP,)))
    kinds = ROLE_KINDS if obj["kind"] == "RoleBinding" else ROLE_KINDS[1:]
    if ref.get("kind") not in kinds:
        causes.append(unsupported("roleRef.kind", ref.get("kind", ""), kinds))
    if not ref.get("name"):
        causes.append(required("roleRef.name"))
    for index, subject in enumerate(listing(obj, "subjects")):
        namespaced = obj["kind"] == "RoleBinding"
        causes += _subject_problems(subject, f"subjects[{index}]", namespaced=namespaced)
    if old is not None and mapping(old, "roleRef") != ref:
        parts = {name: ref.get(field, "") for field, name in _REF_FIELDS.items()}
        text = ", ".join(f'{name}:"{value}"' for name, value in parts.items())
        why = f"Invalid value: rbac.RoleRef{{{text}}}: cannot change roleRef"
        causes.append(Cause("roleRef", why))
    return causes


_REF_FIELDS = {"apiGroup": "APIGroup", "kind": "Kind", "name": "Name"}


def _subject_problems(subject: JsonObject, field: str, *, namespaced: bool) -> list[Cause]:
    causes: list[Cause] = []
    kind, group = subject.get("kind", ""), subject.get("apiGroup", "")
    if not subject.get("name"):
        causes.append(required(f"{field}.name"))
    if kind not in SUBJECT_KINDS:
        causes.append(unsupported(f"{field}.kind", kind, SUBJECT_KINDS))
    elif kind == "ServiceAccount":
        if group:
            causes.append(unsupported(f"{field}.apiGroup", group, ("",)))
        if not namespaced and not subject.get("namespace"):
            causes.append(required(f"{field}.namespace", ""))
    elif group != GROUP:
        causes.append(unsupported(f"{field}.apiGroup", group, (GROUP,)))
    return causes
