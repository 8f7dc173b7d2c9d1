"""Role-based access control, evaluated from the cluster's own Roles and bindings.

Rights only add up: somebody may do what one rule of one role that is bound to him allows. What was
decided is remembered until something of rbac.authorization.k8s.io changes, so that a request costs
a look into a dict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.auth.access import (
    ACCOUNT_PREFIX,
    ALLOWED,
    MASTERS,
    Access,
    Decision,
    Rights,
    User,
)
from fleetbus_emulator.apiserver.auth.roles import GROUP, PolicyRule, rules_of
from fleetbus_emulator.apiserver.json_tree import listing, mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetbus_emulator.apiserver.storage.state import Change, State
    from fleetbus_emulator.apiserver.storage.store import Snapshot
    from fleetbus_emulator.apiserver.types.served import ServedTypes

JsonObject = dict[str, Any]
REMEMBERED = 10_000
PLURALS = {"ClusterRole": "clusterroles", "Role": "roles"}
_Who = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Grant:
    """A rule that a user has, and the binding that grants it."""

    rule: PolicyRule
    by: str


@dataclass(frozen=True, slots=True)
class Grants:
    """The rules of a user in a namespace, and the roles that were not found."""

    grants: tuple[Grant, ...]
    errors: tuple[str, ...]

    @property
    def error(self) -> str:
        """The errors as one text."""
        distinct = list(dict.fromkeys(self.errors))
        return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]" if distinct else ""


class Rbac:
    """The policy of a cluster whose Roles and bindings count.

    Args:
        state: The cluster's memory.
        served: Its types.
    """

    def __init__(self, state: State, served: ServedTypes) -> None:
        self._state = state
        self._served = served
        self._decisions: dict[tuple[Any, ...], Decision] = {}
        self._grants: dict[tuple[_Who, str], Grants] = {}
        state.subscribers.append(self._changed)

    def _changed(self, change: Change) -> None:
        if change.group == GROUP:
            self.reset()

    def reset(self) -> None:
        """Drop remembered decisions: the objects changed without a notification."""
        self._decisions.clear()
        self._grants.clear()

    def decide(self, access: Access) -> Decision:
        """Whether some rule allows the access."""
        user = access.user
        key = (
            user.name,
            user.groups,
            access.verb,
            access.group,
            access.resource,
            access.subresource,
            access.namespace,
            access.name,
            access.path,
        )
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= REMEMBERED:
                self._decisions.clear()
            decision = self._decisions[key] = self._decided(access)
        return decision

    def _decided(self, access: Access) -> Decision:
        if MASTERS in access.user.groups:
            return ALLOWED
        user_grants = self.held(access.user, access.namespace or "")
        for grant in user_grants.grants:
            if grant.rule.allows(access):
                return Decision(allowed=True, reason=f"RBAC: allowed by {grant.by}")
        return Decision(
            allowed=False, reason=f"RBAC: {user_grants.error}" if user_grants.errors else ""
        )

    def rights(self, user: User, namespace: str) -> Rights:
        """The rules of everything that is bound to the user."""
        user_grants = self.held(user, namespace)
        resources: list[JsonObject] = []
        paths: list[JsonObject] = []
        for grant in user_grants.grants:
            rule = grant.rule
            verbs = {"verbs": sorted(rule.verbs)}
            if rule.resources:
                names = {"resourceNames": sorted(rule.names)} if rule.names else {}
                lists = {"apiGroups": sorted(rule.groups), "resources": sorted(rule.resources)}
                resources.append({**verbs, **lists, **names})
            if rule.urls:
                paths.append({**verbs, "nonResourceURLs": list(rule.urls)})
        return Rights(resources, paths, user_grants.error)

    # resolving ----------------------------------------------------------------------------------

    def held(self, user: User, namespace: str) -> Grants:
        """The rules of a user in a namespace; the empty namespace is the whole cluster."""
        key = ((user.name, user.groups), namespace)
        user_grants = self._grants.get(key)
        if user_grants is None:
            if len(self._grants) >= REMEMBERED:
                self._grants.clear()
            user_grants = self._grants[key] = self._resolved(user, namespace)
        return user_grants

    def _resolved(self, user: User, namespace: str) -> Grants:
        grants: list[Grant] = []
        missing: list[str] = []
        for binding, place in self._bindings(namespace):
            subject = next(
                (s for s in listing(binding, "subjects") if _applies(s, user, place)), None
            )
            if subject is None:
                continue
            role = self.role(mapping(binding, "roleRef"), place)
            if isinstance(role, str):
                missing.append(role)
                continue
            by = _described(binding, subject, place)
            grants += [Grant(rule, by) for rule in rules_of(role)]
        return Grants(tuple(grants), tuple(missing))

    def _bindings(self, namespace: str) -> Iterator[tuple[JsonObject, str]]:
        """The bindings that count in a namespace, each with the namespace it is in."""
        for stored in self._objects("clusterrolebindings").select(None):
            yield stored.obj, ""
        if namespace:
            for stored in self._objects("rolebindings").select(namespace):
                yield stored.obj, namespace

    def role(self, ref: JsonObject, namespace: str) -> JsonObject | str:
        """The role that a binding in a namespace refers to, or why there is none."""
        kind, name = str(ref.get("kind", "")), str(ref.get("name", ""))
        place = namespace if kind == "Role" else ""
        rtype = self._served.type_of(GROUP, PLURALS.get(kind, ""))
        stored = None if rtype is None else self._state.store(rtype).get((place, name))
        if stored is None:
            return f'{kind.lower()}.{GROUP} "{name}" not found'
        return stored.obj

    def _objects(self, plural: str) -> Snapshot:
        rtype = self._served.type_of(GROUP, plural)
        assert rtype is not None  # noqa: S101 - a built-in type
        return self._state.store(rtype).snapshot()


def _applies(subject: JsonObject, user: User, namespace: str) -> bool:
    name = subject.get("name")
    match subject.get("kind"):
        case "User":
            return user.name == name
        case "Group":
            return name in user.groups
        case "ServiceAccount":
            place = subject.get("namespace") or namespace
            return bool(place) and user.name == f"{ACCOUNT_PREFIX}{place}:{name}"
        case _:
            return False


def _described(binding: JsonObject, subject: JsonObject, namespace: str) -> str:
    """The reason that a review gives for an allowed access."""
    meta, ref = binding["metadata"], mapping(binding, "roleRef")
    whom = f'{subject["kind"]} "{subject["name"]}"'
    if subject["kind"] == "ServiceAccount":
        whom = f'ServiceAccount "{subject["name"]}/{subject.get("namespace") or namespace}"'
    named = f"{meta['name']}/{namespace}" if namespace else meta["name"]
    return f'{binding["kind"]} "{named}" of {ref.get("kind")} "{ref.get("name")}" to {whom}'
