"""Tokens of ServiceAccounts: signed, and bound to audiences, a lifetime and the account's uid.

They are what the TokenRequest API of a real server gives, JWTs signed with ES256. The key lives as
long as the cluster object: a token of another cluster, or of an earlier run, is unknown.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fleetbus_emulator.apiserver import errors
from fleetbus_emulator.apiserver.auth.access import (
    CREDENTIAL_ID,
    EXTRA_PREFIX,
    User,
    account_user,
    go_list,
)
from fleetbus_emulator.apiserver.auth.static_tokens import API_AUDIENCE, Identity, InvalidTokenError
from fleetbus_emulator.apiserver.encoding.decode import read_review
from fleetbus_emulator.apiserver.errors import ApiError, Cause
from fleetbus_emulator.apiserver.http.exchange import Request, Response, decode_body, json_response
from fleetbus_emulator.apiserver.json_tree import listing, mapping

if TYPE_CHECKING:
    from jwt.types import Options

    from fleetbus_emulator.apiserver.storage.state import State
    from fleetbus_emulator.apiserver.types.served import ServedTypes
    from fleetbus_emulator.apiserver.write.target import Target
    from fleetbus_emulator.apiserver.write.write import WriteOptions

JsonObject = dict[str, Any]
ALGORITHM = "ES256"
KIND = "TokenRequest"
GROUP = "authentication.k8s.io"
API_VERSION = f"{GROUP}/v1"
DEFAULT_SECONDS = 3600
SHORTEST_SECONDS = 600
LONGEST_SECONDS = 1 << 32
LEEWAY = timedelta(minutes=1)  # real servers accept a token a minute longer than it says
REMEMBERED = 1000
# Times are compared with the cluster's own clock, audiences with those that are asked for.
ONLY_SIGNATURE: Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
}
# The kinds that a token can be bound to: the claim and the resource.
BOUND = {"Pod": ("pod", "pods"), "Secret": ("secret", "secrets")}
INVALIDATED = "service account token has been invalidated"


class ServiceAccounts:
    """Issues the tokens of one cluster's ServiceAccounts and recognizes them.

    Args:
        state: The cluster's memory.
        served: Its types.
    """

    def __init__(self, state: State, served: ServedTypes) -> None:
        self._state = state
        self._served = served
        self._read: dict[str, JsonObject] = {}  # what the signature was found good of

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    @cached_property
    def _key_id(self) -> str:
        public = self._key.public_key()
        der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).decode().rstrip("=")

    # issuing ------------------------------------------------------------------------------------

    def request(self, target: Target, request: Request, options: WriteOptions) -> Response:
        """Answer a TokenRequest."""
        account = self._account(target.namespace or "", target.name)
        body = decode_body(request, KIND)
        read_review(body, API_VERSION, KIND, options.validation, options.warnings)
        _check_place(body, target)
        spec: JsonObject = mapping(body, "spec")
        audiences = tuple(listing(spec, "audiences")) or (API_AUDIENCE,)
        seconds = spec.get("expirationSeconds")
        seconds = DEFAULT_SECONDS if seconds is None else int(seconds)
        _check_seconds(seconds)
        bound = self._bound(account, spec.get("boundObjectRef"))
        token, ends = self.issue(account, audiences, timedelta(seconds=seconds), bound)
        document = {
            "kind": KIND,
            "apiVersion": API_VERSION,
            "metadata": {
                "name": target.name,
                "namespace": target.namespace,
                "creationTimestamp": self._state.timestamp(),
            },
            "spec": {
                "audiences": list(audiences),
                "expirationSeconds": seconds,
                "boundObjectRef": spec.get("boundObjectRef"),
            },
            "status": {"token": token, "expirationTimestamp": f"{ends:%Y-%m-%dT%H:%M:%SZ}"},
        }
        response = json_response(201, document)
        response.warn(options.warnings)
        return response

    def token_of(
        self, namespace: str, name: str, audiences: tuple[str, ...], lifetime: timedelta
    ) -> str:
        """A token for a ServiceAccount.

        Raises:
            ApiError: 404, there is no such ServiceAccount.
        """
        return self.issue(self._account(namespace, name), audiences, lifetime, {})[0]

    def issue(
        self,
        account: JsonObject,
        audiences: tuple[str, ...],
        lifetime: timedelta,
        bound: JsonObject,
    ) -> tuple[str, datetime]:
        """A token and when it ends; `bound` are the claims about the object it is bound to."""
        meta = account["metadata"]
        now = self._state.clock().astimezone(UTC).replace(microsecond=0)
        ends = now + lifetime
        private = {
            "namespace": meta["namespace"],
            "serviceaccount": {"name": meta["name"], "uid": meta["uid"]},
        }
        claims: JsonObject = {
            "aud": list(audiences),
            "exp": int(ends.timestamp()),
            "iat": int(now.timestamp()),
            "iss": API_AUDIENCE,
            "jti": self._state.new_uid(),
            "kubernetes.io": {**private, **bound},
            "nbf": int(now.timestamp()),
            "sub": account_user(meta["namespace"], meta["name"]).name,
        }
        headers = {"kid": self._key_id}
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers=headers), ends

    def _account(self, namespace: str, name: str) -> JsonObject:
        account = self._find("serviceaccounts", namespace, name)
        if account is None:
            rtype = self._served.type_of("", "serviceaccounts")
            assert rtype is not None  # noqa: S101 - a built-in type
            raise errors.not_found(rtype, name)
        return account

    def _find(self, plural: str, namespace: str, name: str) -> JsonObject | None:
        rtype = self._served.type_of("", plural)
        stored = None if rtype is None else self._state.store(rtype).get((namespace, name))
        return None if stored is None else stored.obj

    def _bound(self, account: JsonObject, ref: JsonObject | None) -> JsonObject:
        """The claims about the object that a token shall be bound to."""
        if ref is None:
            return {}
        kind, name = str(ref.get("kind", "")), str(ref.get("name", ""))
        version = str(ref.get("apiVersion", ""))
        if kind not in BOUND or version not in ("", "v1"):
            qualified = version if "/" in version else f"/{version}"
            message = f"cannot bind token to object of type {qualified}, Kind={kind}"
            raise errors.bad_request(message)
        claim, plural = BOUND[kind]
        obj = self._find(plural, account["metadata"]["namespace"], name)
        rtype = self._served.type_of("", plural)
        if obj is None or rtype is None:
            message = f'{plural} "{name}" not found'
            raise ApiError(404, "NotFound", message, details={"name": name, "kind": plural})
        uid = obj["metadata"]["uid"]
        if ref.get("uid") not in (None, "", uid):
            why = (
                f"the UID in the bound object reference ({ref['uid']}) does not match the UID in "
                "record. The object might have been deleted and then recreated"
            )
            raise errors.conflict(rtype, name, why, by_kind=True)
        claims: JsonObject = {claim: {"name": name, "uid": uid}}
        return claims if claim == "secret" else claims | self._of_pod(account, obj)

    def _of_pod(self, account: JsonObject, pod: JsonObject) -> JsonObject:
        name = account["metadata"]["name"]
        if mapping(pod, "spec").get("serviceAccountName") != name:
            raise errors.bad_request(
                f'cannot bind token for serviceaccount "{name}" to pod running with different '
                "serviceaccount name."
            )
        node_name = str(mapping(pod, "spec").get("nodeName") or "")
        node = self._find("nodes", "", node_name)
        if not node_name:
            return {}
        uid = {} if node is None else {"uid": node["metadata"]["uid"]}
        return {"node": {"name": node_name, **uid}}

    # recognizing --------------------------------------------------------------------------------

    def identify(self, token: str, audiences: tuple[str, ...]) -> Identity | None:
        """Authenticate a token; None if it is not one of ours.

        Raises:
            InvalidTokenError: It is, and no longer or not here valid.
        """
        claims = self._claims(token)
        if claims is None:
            return None
        accepted: list[str] = claims["aud"]
        common = tuple(audience for audience in audiences if audience in accepted)
        if not common:
            raise InvalidTokenError(
                f"token audiences {go_list(accepted)} is invalid for the target audiences "
                f"{go_list(audiences)}"
            )
        if self._state.clock() > datetime.fromtimestamp(claims["exp"], UTC) + LEEWAY:
            raise InvalidTokenError("service account token has expired")
        return Identity(self._user(claims), common)

    def _claims(self, token: str) -> JsonObject | None:
        claims = self._read.get(token)
        if claims is None and token.count(".") == 2:  # noqa: PLR2004 - the parts of a JWT
            try:
                claims = jwt.decode(
                    token,
                    self._key.public_key(),
                    algorithms=[ALGORITHM],
                    options=ONLY_SIGNATURE,
                )
            except jwt.InvalidTokenError:
                return None
            if len(self._read) >= REMEMBERED:
                self._read.clear()
            self._read[token] = claims
        return claims

    def _user(self, claims: JsonObject) -> User:
        private: JsonObject = claims["kubernetes.io"]
        namespace, account = private["namespace"], private["serviceaccount"]
        service_account = self._find("serviceaccounts", namespace, account["name"])
        if service_account is None:
            raise InvalidTokenError(f'serviceaccounts "{account["name"]}" not found')
        uid = service_account["metadata"]["uid"]
        if uid != account["uid"]:
            raise InvalidTokenError(
                f"service account UID ({uid}) does not match claim ({account['uid']})"
            )
        values = {CREDENTIAL_ID: f"JTI={claims['jti']}", **self._bound_extra(private)}
        extra = {key: (value,) for key, value in values.items()}
        return account_user(namespace, account["name"], uid, extra)

    def _bound_extra(self, private: JsonObject) -> dict[str, str]:
        """The user's extra fields for the object the token is bound to, which must exist."""
        for claim, plural in BOUND.values():
            bound = private.get(claim)
            if bound is None:
                continue
            obj = self._find(plural, private["namespace"], bound["name"])
            if obj is None:
                raise InvalidTokenError(INVALIDATED)
            uid = obj["metadata"]["uid"]
            if uid != bound["uid"]:
                raise InvalidTokenError(
                    f"{claim} UID ({uid}) does not match service account {claim} ref claim "
                    f"({bound['uid']})"
                )
        objects = {claim: private[claim] for claim in ("node", "pod") if claim in private}
        return {
            f"{EXTRA_PREFIX}{claim}-{field}": value
            for claim, of in objects.items()
            for field, value in of.items()
        }


def _check_place(body: JsonObject, target: Target) -> None:
    """Refuse a TokenRequest that names another account than its URL."""
    fields = (("name", target.name, "name"), ("namespace", target.namespace, "namespace"))
    for field, expected, word in fields:
        value = mapping(body, "metadata").get(field)
        if value and value != expected:
            why = f'Invalid value: "{value}": must match the service account {word} if specified'
            cause = Cause(f"metadata.{field}", why)
            raise errors.invalid(KIND, target.name, [cause], group=GROUP)


def _check_seconds(seconds: int) -> None:
    if SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        return
    limit = "less than 10 minutes" if seconds < SHORTEST_SECONDS else "larger than 2^32 seconds"
    why = f"Invalid value: {seconds}: may not specify a duration {limit}"
    raise errors.invalid(KIND, "", [Cause("spec.expirationSeconds", why)], group=GROUP)
