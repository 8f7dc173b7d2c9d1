"""Privilege escalation checks for writes of roles and bindings."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.auth.access import (
    MASTERS,
    Access,
    User,
    forbidden_object,
    go_list,
)
from fleetbus_emulator.apiserver.auth.roles import (
    EVERY,
    GROUP,
    PolicyRule,
    covers_path,
    covers_resource,
    rules_of,
)
from fleetbus_emulator.apiserver.errors import ApiError
from fleetbus_emulator.apiserver.json_tree import mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fleetbus_emulator.apiserver.auth.rbac import Rbac
    from fleetbus_emulator.apiserver.write.target import Target
    from fleetbus_emulator.apiserver.write.write import Admit

JsonObject = dict[str, Any]
ROLES = ("roles", "clusterroles")
EVERYTHING = (
    PolicyRule(frozenset({EVERY}), frozenset({EVERY}), frozenset({EVERY})),
    PolicyRule(frozenset({EVERY}), urls=(EVERY,)),
)
AGGREGATES = "must have cluster-admin privileges to use aggregationRules"


def check_escalation(rbac: Rbac, user: User, target: Target) -> Admit:
    """Make the check that a write of a role or binding has to pass, from new and old object.

    It raises ApiError, 403, for rights that the user does not have and may not grant
    either by the verbs escalate and bind; 404 for a role that does not exist.
    """

    def check(obj: JsonObject, old: JsonObject | None) -> None:
        if MASTERS in user.groups:
            return
        if target.rtype.plural in ROLES:
            _check_role(rbac, user, target, obj, old)
        else:
            _check_binding(rbac, user, target, obj)

    return check


def _check_role(
    rbac: Rbac, user: User, target: Target, obj: JsonObject, old: JsonObject | None
) -> None:
    plural, name = target.rtype.plural, target.name or obj["metadata"]["name"]
    granting = ("rules", "aggregationRule")
    if old is not None and all(old.get(field) == obj.get(field) for field in granting):
        return
    access = Access(user, "escalate", GROUP, plural, target.namespace, target.name)
    if rbac.decide(access).allowed:
        return
    if "aggregationRule" in obj and _missing(rbac, user, "", EVERYTHING):
        raise forbidden_object(GROUP, plural, name, AGGREGATES)
    _confirm(rbac, user, target, name, rules_of(obj))


def _check_binding(rbac: Rbac, user: User, target: Target, obj: JsonObject) -> None:
    ref: JsonObject = mapping(obj, "roleRef")
    plural = "roles" if ref.get("kind") == "Role" else "clusterroles"
    bind = Access(user, "bind", GROUP, plural, target.namespace, str(ref.get("name", "")))
    if rbac.decide(bind).allowed:
        return
    role = rbac.role(ref, target.namespace or "")
    if isinstance(role, str):
        details = {"name": bind.name, "group": GROUP, "kind": plural}
        message = f'{plural}.{GROUP} "{bind.name}" not found'
        raise ApiError(404, "NotFound", message, details=details)
    name = target.name or obj["metadata"]["name"]
    _confirm(rbac, user, target, name, rules_of(role))


def _confirm(
    rbac: Rbac, user: User, target: Target, name: str, rules: Iterable[PolicyRule]
) -> None:
    missing = _missing(rbac, user, target.namespace or "", rules)
    if not missing:
        return
    why = (
        f'user "{user.name}" (groups={go_list(user.groups)}) is attempting to grant RBAC '
        "permissions not currently held:\n" + "\n".join(sorted(_compact(missing)))
    )
    error = rbac.held(user, target.namespace or "").error
    why += f"; resolution errors: [{error}]" if error else ""
    raise forbidden_object(GROUP, target.rtype.plural, name, why)


def _missing(
    rbac: Rbac, user: User, namespace: str, rules: Iterable[PolicyRule]
) -> list[PolicyRule]:
    """The parts of the rules that no single rule of the user covers."""
    granted = [grant.rule for grant in rbac.held(user, namespace).grants]
    parts = (piece for rule in rules for piece in _parts(rule))
    return [piece for piece in parts if not any(_covers(rule, piece) for rule in granted)]


def _parts(rule: PolicyRule) -> Iterator[PolicyRule]:
    """A rule as rules of one verb and one resource or path each."""
    for verb, group, resource in product(*map(sorted, (rule.verbs, rule.groups, rule.resources))):
        single = PolicyRule(frozenset({verb}), frozenset({group}), frozenset({resource}))
        if not rule.names:
            yield single
        for name in sorted(rule.names):
            yield PolicyRule(single.verbs, single.groups, single.resources, frozenset({name}))
    for verb, url in product(sorted(rule.verbs), rule.urls):
        yield PolicyRule(frozenset({verb}), urls=(url,))


def _covers(rule: PolicyRule, piece: PolicyRule) -> bool:
    """Whether a rule contains another of one verb and one resource or path."""
    if EVERY not in rule.verbs and not piece.verbs <= rule.verbs:
        return False
    if piece.urls:
        return any(covers_path(url, piece.urls[0]) for url in rule.urls)
    if EVERY not in rule.groups and not piece.groups <= rule.groups:
        return False
    if rule.names and not (piece.names and piece.names <= rule.names):
        return False
    resource, _, subresource = next(iter(piece.resources)).partition("/")
    return covers_resource(rule.resources, resource, subresource)


def _compact(missing: list[PolicyRule]) -> set[str]:
    """The rules as refusals show them, with the verbs of one resource together."""
    verbs: dict[PolicyRule, list[str]] = {}
    for rule in missing:
        if rule.names or rule.urls:
            verbs[rule] = list(rule.verbs)
            continue
        key = PolicyRule(frozenset(), rule.groups, rule.resources)
        verbs.setdefault(key, []).extend(rule.verbs)
    return {_shown(key, rule_verbs) for key, rule_verbs in verbs.items()}


def _shown(rule: PolicyRule, verbs: list[str]) -> str:
    parts: dict[str, Iterable[str]] = {
        "APIGroups": rule.groups,
        "Resources": rule.resources,
        "NonResourceURLs": rule.urls,
        "ResourceNames": rule.names,
        "Verbs": verbs,
    }
    listed = (f"{name}:{go_list(values)}" for name, values in parts.items() if values)
    return "{" + ", ".join(listed) + "}"
