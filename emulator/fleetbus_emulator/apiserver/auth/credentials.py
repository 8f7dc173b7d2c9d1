"""The credentials that a cluster accepts; they may change while it serves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleetbus_emulator.apiserver.auth.access import CREDENTIAL_ID, User
from fleetbus_emulator.apiserver.auth.certificates import Authority, ClientCertificate
from fleetbus_emulator.apiserver.auth.static_tokens import (
    API_AUDIENCE,
    Identity,
    InvalidTokenError,
    Tokens,
    known,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fleetbus_emulator.apiserver.auth.service_accounts import ServiceAccounts

UNKNOWN_TOKEN = "invalid bearer token"  # noqa: S105 - a message
CLOCK_SKEW = timedelta(minutes=5)  # certificates begin a little in the past
REMEMBERED = 1000


class InvalidCertificateError(Exception):
    """A client certificate that does not count, and why."""


class Credentials:
    """The tokens and client certificates of one cluster.

    Args:
        cluster: Its name, for the subject of its authority.
        accounts: Its ServiceAccounts, which have tokens of their own.
        clock: Gives the time, aware.
        tokens: Users, or their names, by bearer token.
    """

    def __init__(
        self,
        cluster: str,
        *,
        accounts: ServiceAccounts,
        clock: Callable[[], datetime],
        tokens: Mapping[str, str | User],
    ) -> None:
        self._cluster = cluster
        self._accounts = accounts
        self._clock = clock
        self._tokens = Tokens(clock)
        self._certificates: dict[bytes, _Known] = {}  # of our authority, by their DER form
        for token, user in tokens.items():
            self.add_token(token, user)

    # giving and taking --------------------------------------------------------------------------

    def add_token(
        self,
        token: str,
        user: str | User,
        *,
        audiences: tuple[str, ...] = (API_AUDIENCE,),
        ends: datetime | None = None,
    ) -> None:
        """Accept a bearer token.

        Args:
            token: The token.
            user: Its user, who is also in the group system:authenticated.
            audiences: Whom it is meant for. Without the API server's own audience it is good for
                nothing but a TokenReview that asks for one of these.
            ends: From when on it is not accepted, aware; None is never.

        Raises:
            ValueError: `ends` has no time zone.
        """
        if ends is not None and ends.tzinfo is None:
            raise ValueError(f"ends={ends.isoformat()} has no time zone, like datetime.now(UTC)")
        self._tokens.add(token, User(user) if isinstance(user, str) else user, audiences, ends)

    def revoke_token(self, token: str) -> None:
        """Accept a token of `add_token` no longer.

        Raises:
            KeyError: There is no such token.
        """
        self._tokens.revoke(token)

    def account_token(
        self,
        namespace: str,
        name: str,
        *,
        audiences: tuple[str, ...] = (API_AUDIENCE,),
        lifetime: timedelta = timedelta(hours=1),
    ) -> str:
        """A token of a ServiceAccount, as a TokenRequest gives it but of any lifetime.

        Raises:
            ApiError: 404, there is no such ServiceAccount.
        """
        return self._accounts.token_of(namespace, name, audiences, lifetime)

    def issue_certificate(
        self,
        user: str,
        groups: tuple[str, ...] = (),
        *,
        lifetime: timedelta = timedelta(days=365),
    ) -> ClientCertificate:
        """A certificate with which a client is this user, over HTTPS.

        It cannot be revoked, as on a real cluster; it expires.

        Raises:
            ValueError: A name is longer than X.509 allows, 64 bytes.
        """
        now = self._clock()
        ends = now + lifetime
        begins = min(now, ends) - CLOCK_SKEW
        return self.authority.issue_client(user, groups, begins=begins, ends=ends)

    @cached_property
    def authority(self) -> Authority:
        """The authority of the cluster's client certificates."""
        return Authority(f"clients of {self._cluster}")

    # recognizing --------------------------------------------------------------------------------

    def identify(self, token: str, audiences: tuple[str, ...]) -> Identity:
        """Authenticate a bearer token.

        Args:
            token: The token.
            audiences: At least one of them the token has to be meant for.

        Raises:
            InvalidTokenError: Nobody.
        """
        identity = self._tokens.identify(token, audiences)
        if identity is not None:
            return identity
        try:
            identity = self._accounts.identify(token, audiences)
        except InvalidTokenError as error:
            # In a real server two authenticators refuse, and both errors are joined.
            raise InvalidTokenError(f"[{UNKNOWN_TOKEN}, {error}]") from None
        if identity is None:
            raise InvalidTokenError(UNKNOWN_TOKEN)
        return identity

    def user_of(self, certificate: bytes) -> User | None:
        """Authenticate a client certificate in DER form; None if it has no common name.

        Raises:
            InvalidCertificateError: It is of another authority, or not valid now.
        """
        entry = self._certificates.get(certificate)
        if entry is None:
            entry = self._checked(certificate)
        if not entry.begins <= self._clock() <= entry.ends:
            raise InvalidCertificateError("x509: certificate has expired or is not yet valid")
        return entry.user

    def _checked(self, certificate: bytes) -> _Known:
        try:
            parsed = x509.load_der_x509_certificate(certificate)
            usage = parsed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except (ValueError, x509.ExtensionNotFound):
            raise InvalidCertificateError("x509: certificate cannot be used by clients") from None
        if ExtendedKeyUsageOID.CLIENT_AUTH not in usage or not self.authority.has_issued(parsed):
            raise InvalidCertificateError("x509: certificate signed by unknown authority")
        if len(self._certificates) >= REMEMBERED:
            self._certificates.clear()
        entry = _Known(parsed.not_valid_before_utc, parsed.not_valid_after_utc, _named_by(parsed))
        self._certificates[certificate] = entry
        return entry


@dataclass(frozen=True, slots=True)
class _Known:
    """A parsed certificate of our authority."""

    begins: datetime
    ends: datetime
    user: User | None


def _named_by(certificate: x509.Certificate) -> User | None:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if not names:
        return None
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    extra = {CREDENTIAL_ID: (f"X509SHA256={fingerprint}",)}
    return known(User(str(names[0].value), tuple(str(g.value) for g in groups), extra=extra))
