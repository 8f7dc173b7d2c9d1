"""Role-based access control, compared with the calls that were really made.

Pure computation: `grants_of` reads rendered or listed objects, `missing` and `unused` compare them
with calls. Calls come from an emulated cluster (`Access`) or from the audit log of a real API
server (`calls_of_audit_event`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

Object = dict[str, Any]
EVERY: Final = "*"
GROUP: Final = "group:"
AUTHENTICATED: Final = "system:authenticated"


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """One request, as the authorizer of an API server sees it.

    Attributes:
        user: its name; a ServiceAccount is `system:serviceaccount:<namespace>:<name>`.
        name: empty for a create, and for a list or watch that does not select one name.
        path: of a request for something that is no resource; the rest is empty then.
    """

    user: str
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.path:
            return f"{self.user}: {self.verb} {self.path}"
        where = f"{self.namespace or EVERY}/{self.name or EVERY}"
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.user}: {self.verb} {_qualified(self.group, resource)} {where}"


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """The smallest part of a rule: one verb on one resource, for one subject.

    Attributes:
        subject: the name of a user, or `group:` and the name of a group.
        resource: with its subresource, like `clusters/status`.
        namespace: where it holds; empty is the whole cluster.
        name: of the only object it is about; empty is every object.
        path: of a rule about no resource.
    """

    subject: str
    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{self.subject}: {self.verb} {self.path}"
        where = f"{self.namespace or EVERY}/{self.name or EVERY}"
        return f"{self.subject}: {self.verb} {_qualified(self.group, self.resource)} {where}"

    def covers(self, call: Call) -> bool:
        """Whether it allows the call."""
        if self.subject not in (call.user, *(f"{GROUP}{group}" for group in call.groups)):
            return False
        if self.verb not in (EVERY, call.verb):
            return False
        if call.path or self.path:
            return _covers_path(self.path, call.path)
        if self.namespace not in ("", call.namespace) or self.name not in ("", call.name):
            return False
        return self.group in (EVERY, call.group) and self._covers_resource(call)

    def _covers_resource(self, call: Call) -> bool:
        if not call.subresource:
            return self.resource in (EVERY, call.resource)
        return self.resource in (
            *(EVERY, f"{call.resource}/{call.subresource}", f"*/{call.subresource}"),
        )


def _covers_path(granted: str, path: str) -> bool:
    if not granted or not path:
        return False
    if granted.endswith(EVERY):
        return path.startswith(granted.rstrip(EVERY))
    return granted == path


def _qualified(group: str, resource: str) -> str:
    plural, slash, subresource = resource.partition("/")
    return f"{plural}.{group}{slash}{subresource}" if group else resource


# what is granted --------------------------------------------------------------------------------


def grants_to(subject: str, rules: Iterable[Mapping[str, Any]], namespace: str = "") -> list[Grant]:
    """The parts of PolicyRules that are bound to a subject, in one namespace or everywhere."""
    return [grant for rule in rules for grant in _parts(subject, rule, namespace)]


def _parts(subject: str, rule: Mapping[str, Any], namespace: str) -> Iterator[Grant]:
    # A path belongs to no namespace, so a RoleBinding grants none.
    paths = () if namespace else rule.get("nonResourceURLs") or ()
    for verb, path in product(rule["verbs"], paths):
        yield Grant(subject, verb, path=path)
    lists = (rule.get("apiGroups") or (), rule.get("resources") or ())
    names: Sequence[str] = rule.get("resourceNames") or ("",)
    for verb, group, resource, name in product(rule["verbs"], *lists, names):
        yield Grant(subject, verb, group, resource, namespace, name)


def grants_of(objects: Iterable[Object]) -> list[Grant]:
    """The grants that the bindings among these objects make with the roles among them.

    Raises:
        ValueError: a binding refers to a role that is missing, or to an aggregated one.
    """
    objects = list(objects)
    roles = {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): obj
        for obj in objects
        if obj["kind"] in ("Role", "ClusterRole")
    }
    bindings = [obj for obj in objects if obj["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    return [grant for binding in bindings for grant in _bound(binding, roles)]


def _bound(binding: Object, roles: Mapping[tuple[str, str, str], Object]) -> Iterator[Grant]:
    ref = binding["roleRef"]
    of_namespace = binding["kind"] == "RoleBinding"
    namespace = binding["metadata"].get("namespace", "") if of_namespace else ""
    role = roles.get((ref["kind"], namespace if ref["kind"] == "Role" else "", ref["name"]))
    if role is None or "aggregationRule" in role:
        raise ValueError(f"{binding['metadata']['name']}: {ref['name']} is missing or aggregated")
    for subject in binding.get("subjects") or ():
        yield from grants_to(_name_of(subject, namespace), role.get("rules") or (), namespace)


def _name_of(subject: Object, namespace: str) -> str:
    if subject["kind"] == "Group":
        return f"{GROUP}{subject['name']}"
    if subject["kind"] == "User":
        return subject["name"]
    return f"system:serviceaccount:{subject.get('namespace') or namespace}:{subject['name']}"


EVERYBODY: Final = [
    *grants_to(
        f"{GROUP}{AUTHENTICATED}",
        [
            {
                "verbs": ["create"],
                "apiGroups": ["authorization.k8s.io"],
                "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
            },
            {
                "verbs": ["create"],
                "apiGroups": ["authentication.k8s.io"],
                "resources": ["selfsubjectreviews"],
            },
            {
                "verbs": ["get"],
                "nonResourceURLs": [
                    *("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"),
                    *("/healthz", "/livez", "/readyz", "/version", "/version/"),
                ],
            },
        ],
    )
]
"""The rights of every user: system:basic-user, system:discovery and system:public-info-viewer."""


# what was called --------------------------------------------------------------------------------


def calls_of_audit_event(event: Mapping[str, Any]) -> list[Call]:
    """The calls of an event of audit.k8s.io/v1, with level Metadata or above.

    A patch or an update that created needs the right to create, too; the log does not show that
    second question to the authorizer, but the status 201.
    """
    user, impersonated = event["user"], event.get("impersonatedUser")
    who = impersonated or user
    groups = tuple(who.get("groups") or ())
    ref = event.get("objectRef")
    if ref is None or not ref.get("resource"):
        path = event["requestURI"].partition("?")[0]
        return [Call(who["username"], event["verb"], path=path, groups=groups)]
    call = Call(
        who["username"],
        event["verb"],
        ref.get("apiGroup", ""),
        ref["resource"],
        ref.get("subresource", ""),
        ref.get("namespace", ""),
        "" if event["verb"] == "create" and not ref.get("subresource") else ref.get("name", ""),
        groups=groups,
    )
    status: Object = event.get("responseStatus") or {}
    if call.verb not in ("patch", "update") or status.get("code") != 201:
        return [call]
    return [
        call,
        Call(call.user, "create", call.group, call.resource, "", call.namespace, call.name),
    ]


# the comparison ---------------------------------------------------------------------------------


def allows(grants: Iterable[Grant], call: Call) -> bool:
    """Whether one of the grants covers the call; rights only add up."""
    return any(grant.covers(call) for grant in grants)


def missing(grants: Sequence[Grant], calls: Iterable[Call]) -> list[Call]:
    """The calls that no grant covers, and that not everybody may make."""
    all_grants = [*grants, *EVERYBODY]
    return sorted(call for call in set(calls) if not allows(all_grants, _authenticated(call)))


def unused(grants: Iterable[Grant], calls: Iterable[Call]) -> list[Grant]:
    """The grants that cover none of the calls."""
    distinct = set(calls)
    return sorted(
        grant for grant in set(grants) if not any(grant.covers(call) for call in distinct)
    )


def _authenticated(call: Call) -> Call:
    groups = (*call.groups, AUTHENTICATED)
    return Call(
        *(call.user, call.verb, call.group, call.resource, call.subresource),
        *(call.namespace, call.name, call.path, groups),
    )


def differences(
    grants: Sequence[Grant], calls: Iterable[Call], explained: Mapping[str, str]
) -> list[str]:
    """Compare what is granted with what was called; empty when nothing is missing or unused.

    Args:
        grants: the rights.
        calls: of all users; those of users without a grant are missing, so leave others out.
        explained: the grants that the calls cannot exercise, as `str(grant)`, each with the reason.
            An entry that is exercised, or that is no grant, is reported as stale.
    """
    calls = list(calls)
    left = {str(grant) for grant in unused(grants, calls)}
    return [
        *(f"missing: {call}" for call in missing(grants, calls)),
        *(f"unused: {grant}" for grant in sorted(left - explained.keys())),
        *(f"stale explanation: {text}" for text in sorted(explained.keys() - left)),
    ]
