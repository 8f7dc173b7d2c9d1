"""Access control between a request and the verbs: authentication, authorization, admission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fleetbus_emulator.apiserver.auth.access import (
    Access,
    Authorize,
    FunctionPolicy,
    Policy,
    User,
    allow_all,
    forbidden,
    forbidden_object,
)
from fleetbus_emulator.apiserver.auth.authenticate import Authenticator
from fleetbus_emulator.apiserver.auth.bootstrap_roles import bootstrap_objects
from fleetbus_emulator.apiserver.auth.credentials import Credentials
from fleetbus_emulator.apiserver.auth.escalation import check_escalation
from fleetbus_emulator.apiserver.auth.rbac import Rbac
from fleetbus_emulator.apiserver.auth.reviews import Reviews
from fleetbus_emulator.apiserver.auth.role_aggregation import RoleAggregation
from fleetbus_emulator.apiserver.auth.roles import GROUP
from fleetbus_emulator.apiserver.auth.service_accounts import ServiceAccounts
from fleetbus_emulator.apiserver.write import write
from fleetbus_emulator.apiserver.write.target import Target
from fleetbus_emulator.apiserver.write.write import Admit, WriteOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetbus_emulator.apiserver.http.exchange import Request, Route
    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.types.served import Served, ServedTypes

JsonObject = dict[str, Any]
BOOTSTRAP_MANAGER = "kube-apiserver"
NAMED_BY_SELECTOR = frozenset({"list", "watch", "deletecollection"})


class AccessControl:
    """The gate of one cluster.

    Args:
        cluster: Its name.
        state: Its memory.
        served: Its types.
        tokens: Users, or their names, by bearer token; None, together with a function as policy,
            lets everybody in as admin.
        authorize: Decides who may do what: a function, or "rbac" for the cluster's own Roles and
            bindings, of which it then gets the usual first ones.

    Attributes:
        accounts: The ServiceAccounts and their tokens.
        credentials: The credentials that it accepts.
        reviews: Answers questions about the two.
        is_open: Whether everybody is admitted as admin, without authentication.
    """

    def __init__(
        self,
        cluster: str,
        *,
        state: State,
        served: ServedTypes,
        tokens: Mapping[str, str | User] | None,
        authorize: Authorize | Literal["rbac"],
    ) -> None:
        self._rbac, self._policy = _policies(authorize, state, served)
        self.is_open = tokens is None and self._rbac is None
        self._admits_all = self.is_open and authorize is allow_all
        self.accounts = ServiceAccounts(state, served)
        self.credentials = Credentials(
            cluster, accounts=self.accounts, clock=state.clock, tokens=tokens or {}
        )
        proofs = None if self.is_open else self.credentials
        self._authenticator = Authenticator(proofs, self._policy)
        self.reviews = Reviews(self.credentials, self._policy)
        if self._rbac is not None:
            _create_bootstrap_objects(state, served)

    def user_of(self, request: Request) -> User:
        """The user who makes a request.

        Raises:
            ApiError: 401 or 403.
        """
        return self._authenticator.user_of(request)

    def check(self, access: Access) -> None:
        """Refuse an access that is not allowed.

        Raises:
            ApiError: 403.
        """
        decision = self._policy.decide(access)
        if not decision.allowed:
            raise forbidden(access, decision.reason)

    def admission(self, user: User, verb: str, target: Target) -> Admit | None:
        """Make the check that the object of a write has to pass; None if there is none.

        An update or an apply that creates needs the right to create, and of roles and bindings
        nobody may give away more than he has.
        """
        if self._admits_all:
            return None
        checks: list[Admit] = []
        if verb != "create":
            checks.append(self._may_create(user, target))
        if self._rbac is not None and target.rtype.group == GROUP:
            checks.append(check_escalation(self._rbac, user, target))

        def admit(obj: JsonObject, old: JsonObject | None) -> None:
            for check in checks:
                check(obj, old)

        return admit if checks else None

    def _may_create(self, user: User, target: Target) -> Admit:
        rtype = target.rtype

        def check(obj: JsonObject, old: JsonObject | None) -> None:
            del obj
            if old is not None:
                return
            namespace, name = target.namespace, target.name
            access = Access(user, "create", rtype.group, rtype.plural, namespace, name)
            decision = self._policy.decide(access)
            if not decision.allowed:
                raise forbidden_object(rtype.group, rtype.plural, name, decision.reason)

        return check

    def reset(self) -> None:
        """The cluster has other objects than subscribers know: decide anew."""
        if self._rbac is not None:
            self._rbac.reset()


def requested_access(request: Request, route: Route, verb: str, user: User) -> Access:
    """The access that a request for a resource asks for.

    A namespace is an object of itself, and a list that selects one name is about that object.
    """
    namespace, name = route.namespace, route.name
    if route.plural == "namespaces" and not route.group and namespace is None:
        namespace = name or None
    if not name and verb in NAMED_BY_SELECTOR and "fieldSelector" in request.query:
        name = _selected_name(request.query["fieldSelector"])
    return Access(user, verb, route.group, route.plural, namespace, name, route.subresource)


def _selected_name(selector: str) -> str:
    for term in selector.split(","):
        field, _, value = term.partition("=")
        if field.strip() == "metadata.name":
            return value.removeprefix("=").strip()
    return ""


def _policies(
    authorize: Authorize | Literal["rbac"], state: State, served: ServedTypes
) -> tuple[Rbac | None, Policy]:
    if not isinstance(authorize, str):
        return None, FunctionPolicy(authorize)
    if authorize != "rbac":
        raise ValueError(f'authorize is a function or "rbac", not {authorize!r}')
    rbac = Rbac(state, served)
    return rbac, rbac


def _create_bootstrap_objects(state: State, served: ServedTypes) -> None:
    """The first roles and bindings, and the controller that keeps aggregated roles."""
    types: dict[str, Served] = {}
    for plural, obj in bootstrap_objects():
        served_type = types.get(plural) or served.find(GROUP, "v1", plural)
        assert served_type is not None  # noqa: S101 - a built-in type
        types[plural] = served_type
        options = WriteOptions(manager=BOOTSTRAP_MANAGER)
        write.create(state, Target(served_type, None, ""), obj, options)
    RoleAggregation(state, types["clusterroles"]).run()
