"""Review types: posted, answered, stored nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.auth.access import Access, Policy, User
from fleetbus_emulator.apiserver.auth.static_tokens import API_AUDIENCE, InvalidTokenError
from fleetbus_emulator.apiserver.encoding.decode import read_review
from fleetbus_emulator.apiserver.errors import (
    Cause,
    NotServed,
    bad_request,
    invalid,
    method_not_allowed,
)
from fleetbus_emulator.apiserver.http.exchange import (
    Request,
    Response,
    Route,
    decode_body,
    json_response,
)
from fleetbus_emulator.apiserver.http.options import write_options
from fleetbus_emulator.apiserver.json_tree import as_object, listing, mapping

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.auth.access import Decision
    from fleetbus_emulator.apiserver.auth.credentials import Credentials

JsonObject = dict[str, Any]
AUTHORIZATION = "authorization.k8s.io"
AUTHENTICATION = "authentication.k8s.io"
# group, version, plural, kind, namespaced
VIRTUAL_TYPES: tuple[tuple[str, str, str, str, bool], ...] = (
    (AUTHENTICATION, "v1", "selfsubjectreviews", "SelfSubjectReview", False),
    (AUTHENTICATION, "v1", "tokenreviews", "TokenReview", False),
    (AUTHORIZATION, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", True),
    (AUTHORIZATION, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False),
    (AUTHORIZATION, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False),
    (AUTHORIZATION, "v1", "subjectaccessreviews", "SubjectAccessReview", False),
)
_PATHS: dict[tuple[str, str, str], tuple[str, str, str, str, bool]] = {
    (group, version, plural): (group, version, plural, kind, namespaced)
    for group, version, plural, kind, namespaced in VIRTUAL_TYPES
}


def is_review(route: Route) -> bool:
    """Whether a path is that of a review."""
    return (route.group, route.version, route.plural) in _PATHS


class Reviews:
    """Answers reviews from the same proofs and rules that requests are checked with.

    Args:
        credentials: The credentials that it accepts.
        policy: Decides who may do what.
    """

    def __init__(self, credentials: Credentials, policy: Policy) -> None:
        self._credentials = credentials
        self._policy = policy

    def answer(self, request: Request, route: Route, user: User) -> Response:
        """The review with its status filled in.

        Raises:
            ApiError: 400 or 422, it cannot be answered; 404 or 405, it is no POST to its path.
        """
        group, version, plural, kind, namespaced = _PATHS[route.group, route.version, route.plural]
        if namespaced != (route.namespace is not None) or route.name:
            raise NotServed
        if request.method != "POST":
            raise method_not_allowed(plural)
        options = write_options(request, "create")
        body = decode_body(request, kind)
        _check_kind(body, kind, f"{group}/{version}")
        read_review(body, f"{group}/{version}", kind, options.validation, options.warnings)
        spec: JsonObject = mapping(body, "spec")
        metadata: JsonObject = {"creationTimestamp": None}
        match kind:
            case "TokenReview":
                status = self._token(spec)
            case "SelfSubjectReview":
                status = {"userInfo": user.to_info()}
            case "SelfSubjectRulesReview":
                status, spec = self._rules(spec, user), {}
            case _:
                _check_access_review(kind, body, route)
                if route.namespace is not None:
                    metadata["namespace"] = route.namespace
                subject = user if kind.startswith("Self") else _subject(spec)
                status = _access_status(self._policy.decide(_access(spec, subject)))
        head = {"kind": kind, "apiVersion": f"{group}/{version}", "metadata": metadata}
        content = {} if kind == "SelfSubjectReview" else {"spec": spec}
        response = json_response(201, {**head, **content, "status": status})
        response.warn(options.warnings)
        return response

    def _token(self, spec: JsonObject) -> JsonObject:
        token = spec.get("token") or ""
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        audiences = tuple(listing(spec, "audiences")) or (API_AUDIENCE,)
        try:
            identity = self._credentials.identify(token, audiences)
        except InvalidTokenError as error:
            return {"user": {}, "error": str(error)}
        details = {"user": identity.user.to_info(), "audiences": list(identity.audiences)}
        return {"authenticated": True, **details}

    def _rules(self, spec: JsonObject, user: User) -> JsonObject:
        namespace = spec.get("namespace") or ""
        if not namespace:
            raise bad_request("no namespace on request")
        rights = self._policy.rights(user, namespace)
        lists = {"resourceRules": rights.resources, "nonResourceRules": rights.paths}
        error = {"evaluationError": rights.error} if rights.error else {}
        return {**lists, "incomplete": bool(rights.error), **error}


def _access_status(decision: Decision) -> JsonObject:
    reason = {"reason": decision.reason} if decision.reason else {}
    return {"allowed": decision.allowed, **reason}


def _subject(spec: JsonObject) -> User:
    """The user of a SubjectAccessReview, with the groups it names and no others."""
    extra: dict[str, list[str]] = mapping(spec, "extra")
    return User(
        name=spec.get("user") or "",
        groups=tuple(listing(spec, "groups")),
        uid=spec.get("uid") or "",
        extra={key: tuple(values) for key, values in extra.items()},
    )


def _access(spec: JsonObject, user: User) -> Access:
    elsewhere = as_object(spec.get("nonResourceAttributes"))
    if elsewhere is not None:
        return Access(user, elsewhere.get("verb") or "", path=elsewhere.get("path") or "")
    attributes: JsonObject = mapping(spec, "resourceAttributes")
    return Access(
        user=user,
        verb=attributes.get("verb") or "",
        group=attributes.get("group") or "",
        resource=attributes.get("resource") or "",
        namespace=attributes.get("namespace") or None,
        name=attributes.get("name") or "",
        subresource=attributes.get("subresource") or "",
    )


# what cannot be answered ------------------------------------------------------------------------


def _check_kind(body: JsonObject, kind: str, api_version: str) -> None:
    """Refuse a body that says it is something else; it may leave out both."""
    version = body.get("apiVersion") or api_version
    if version != api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({api_version})"
        )
    if (body.get("kind") or kind) != kind:
        raise bad_request(
            f'{body["kind"]} in version "v1" cannot be handled as a {kind}: no kind '
            f'"{body["kind"]}" is registered for version "{api_version}" in scheme '
            '"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30"'
        )


def _check_access_review(kind: str, body: JsonObject, route: Route) -> None:
    spec: JsonObject = mapping(body, "spec")
    resource, elsewhere = (
        as_object(spec.get(name)) for name in ("resourceAttributes", "nonResourceAttributes")
    )
    causes: list[Cause] = []
    if resource is not None and elsewhere is not None:
        why = f"{_invalid(elsewhere)}: cannot be specified in combination with resourceAttributes"
        causes.append(Cause("spec.nonResourceAttributes", why))
    if resource is None and elsewhere is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        causes.append(Cause("spec.resourceAttributes", f'Invalid value: "null": {why}'))
    if not kind.startswith("Self") and not spec.get("user") and not listing(spec, "groups"):
        why = 'Invalid value: "": at least one of user or group must be specified'
        causes.append(Cause("spec.user", why))
    if route.namespace is not None:
        _check_local(body, route.namespace, resource, elsewhere, causes)
    if causes:
        raise invalid(kind, "", causes, group=AUTHORIZATION)


def _check_local(
    body: JsonObject,
    namespace: str,
    resource: JsonObject | None,
    elsewhere: JsonObject | None,
    causes: list[Cause],
) -> None:
    """A LocalSubjectAccessReview asks about its own namespace."""
    if (mapping(body, "metadata").get("namespace") or namespace) != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    requested_namespace = None if resource is None else resource.get("namespace") or ""
    if requested_namespace is not None and requested_namespace != namespace:
        why = f'Invalid value: "{requested_namespace}": must match metadata.namespace'
        causes.append(Cause("spec.resourceAttributes.namespace", why))
    if elsewhere is not None:
        why = f"{_invalid(elsewhere)}: disallowed on this kind of request"
        causes.append(Cause("spec.nonResourceAttributes", why))


def _invalid(value: JsonObject) -> str:
    return f"Invalid value: {orjson.dumps(value).decode()}"
