"""Tokens of the accounts on a member, and the limited kubeconfigs that contain them.

A token comes from the TokenRequest API: it is short-lived and bound to the ServiceAccount, so
deleting the account revokes it. The Secret on the hub says whose token it is and for how long to
ask, so that whoever renews it needs to know nothing else.
"""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import orjson

from fleetbus.clusters.access import kubeconfig_of, read_text
from fleetbus.clusters.member_rights import NAMESPACE
from fleetbus.clusters.membership import JOINED_LABEL
from fleetbus.errors import ConfigError, KubeError
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.config import KubeConfig, cluster_fields
from fleetbus.kube.json_fields import many, mapping, string
from fleetbus.kube.requests import Call, path_of
from fleetbus.process.access.tokens import is_bearer_token, read_expiry, read_lifetime

ACCOUNT: Final = "fleetbus.dev/service-account"
"""Annotation of a kubeconfig Secret: the account on the member whose token is in it."""
LIFETIME: Final = "fleetbus.dev/token-lifetime"
"""Annotation of a kubeconfig Secret whose token is renewed: for how many seconds to ask."""
SHORTEST: Final = timedelta(minutes=10)
"""The API server's own limit."""
DEFAULT_LIFETIME: Final = timedelta(hours=24)
_KEY: Final = "kubeconfig"
_LONGEST_TOKEN: Final = 16 * 1024
"""Characters; those of an API server have about a thousand."""
_DUE: Final = 0.5
"""The part of its life that a token has left when it is renewed: half of it for retries."""


async def request_token(client: KubeClient, account: str, lifetime: timedelta) -> str:
    """Ask a member for a token of one of its accounts.

    Raises:
        KubeError: the member refused, did not answer, or its answer has no token that can be sent
            and says for how long it is valid.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": int(lifetime.total_seconds())},
    }
    path = path_of("v1/serviceaccounts", NAMESPACE, account) + "/token"
    answer = await client.request(Call("POST", path, body=orjson.dumps(body)))
    try:
        token = string(orjson.loads(answer), "status", "token")
    except orjson.JSONDecodeError:
        token = ""
    # The member is not trusted: a line end would break the header of each later request.
    if len(token) > _LONGEST_TOKEN or not is_bearer_token(token) or read_lifetime(token) is None:
        raise KubeError(0, "NoToken", f"the answer for {account} has no token that expires")
    return token


def limited_server(admin: KubeConfig, server: str, *, insecure: bool) -> dict[str, str]:
    """The cluster section of a limited kubeconfig: address and trust of the administrator's.

    Args:
        admin: the administrator's kubeconfig.
        server: another address of the same API server; empty for the same.
        insecure: leave the certificate unverified.

    Raises:
        ConfigError: the kubeconfig is incomplete, or its CA file cannot be read.
    """
    fields = cluster_fields(admin)
    section = {"server": server or string(fields, "server")}
    for name in ("tls-server-name", "proxy-url"):
        if value := string(fields, name):
            section[name] = value
    if insecure:
        return section
    if fields.get("insecure-skip-tls-verify"):
        raise ConfigError(
            f"{admin.source}: it leaves the certificate of the API server unverified; give it a"
            " certificate-authority, or join with --insecure"
        )
    if authority := _authority(admin, fields):
        section["certificate-authority-data"] = authority
    return section


def _authority(admin: KubeConfig, fields: dict[str, Any]) -> str:
    if data := string(fields, "certificate-authority-data"):
        return data
    if not (file := string(fields, "certificate-authority")):
        return ""
    path = Path(admin.source).expanduser().absolute().parent / Path(file).expanduser()
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as e:
        raise ConfigError(f"{admin.source}: certificate-authority {path}: {e.strerror}") from e


def access_data(server: dict[str, str], token: str) -> dict[str, str]:
    """The data of a kubeconfig Secret."""
    document = kubeconfig_of(server, {"token": token})
    return {_KEY: base64.b64encode(document.encode()).decode()}


def renewal_marks(account: str, lifetime: timedelta) -> dict[str, str]:
    """The annotations of a Secret whose token is to be renewed."""
    return {ACCOUNT: account, LIFETIME: str(int(lifetime.total_seconds()))}


class RenewableSecret:
    """A kubeconfig Secret on the hub with a token that is renewed.

    Args:
        secret: the Secret.
    """

    def __init__(self, secret: Object) -> None:
        metadata = mapping(secret, "metadata")
        marks = mapping(metadata, "annotations")
        self.namespace, self.name = str(metadata["namespace"]), str(metadata["name"])
        self.resource_version = str(metadata.get("resourceVersion") or "")
        self.cluster = string(metadata, "labels", JOINED_LABEL)
        self.account = string(marks, ACCOUNT)
        self.lifetime = _lifetime(string(marks, LIFETIME))
        self._document = read_text(self.name, secret, _KEY)[0]
        token = _token(self._document)
        self.expiry = read_expiry(token) or 0.0
        # A server may issue tokens for less than it was asked for.
        self._issued_for = read_lifetime(token) or 0.0

    @property
    def is_renewable(self) -> bool:
        """Whether a join wrote it so that its token can be renewed."""
        return all((self.cluster, self.account, self.lifetime, self._issued_for))

    def left(self, now: float) -> float:
        """The part of the token's life that is left: 1 is all of it, 0 or less is expired."""
        return (self.expiry - now) / self._issued_for if self._issued_for else 1.0

    def outlasts(self, token: str) -> bool:
        """Whether the token in the Secret is valid for longer than another one."""
        return self.expiry > (read_expiry(token) or 0.0)

    def is_due(self, now: float) -> bool:
        """Whether it is time to renew the token."""
        return self.is_renewable and self.left(now) < _DUE

    def with_token(self, token: str) -> Object:
        """The merge patch that replaces the token, if the Secret is still the one that was read."""
        # Other fields of the kubeconfig stay as they are.
        document: dict[str, Any] = orjson.loads(self._document)
        for user in document["users"]:
            user["user"] = {"token": token}
        text = orjson.dumps(document)
        return {
            "metadata": {"resourceVersion": self.resource_version},
            "data": {_KEY: base64.b64encode(text).decode()},
        }


def _lifetime(text: str) -> timedelta:
    """The lifetime to ask for; zero if the Secret says none."""
    if not text.isascii() or not text.isdecimal() or len(text) > 9:  # noqa: PLR2004 -- 30 years
        return timedelta()
    return max(timedelta(seconds=int(text)), SHORTEST)


def _token(document: str) -> str:
    """The token in a kubeconfig that a join wrote; empty in any other."""
    try:
        users = many(mapping(orjson.loads(document)), "users")
    except orjson.JSONDecodeError:
        return ""
    tokens = [string(user, "user", "token") for user in users]
    return tokens[0] if len(tokens) == 1 else ""
