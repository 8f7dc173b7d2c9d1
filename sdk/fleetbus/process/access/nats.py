"""The address of NATS, and what we log in with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from fleetbus.errors import ConfigError, CredentialsError
from fleetbus.process.access.secret_files import AccessFields, SecretFile, TlsFiles
from fleetbus.process.access.tokens import read_expiry
from fleetbus.process.redact import without_secrets

NATS_PREFIX: Final = "FLEETBUS_NATS_"
NATS_FIELDS: Final = (
    *("creds_file", "nkey_file", "username", "password_file"),
    *("ca_file", "cert_file", "key_file", "inbox_prefix"),
)
"""Beside `url`; one word each after the prefix of a setting."""
_LOGINS: Final = ("creds_file", "nkey_file", "username")
_SUBJECT: Final = re.compile(r"[\w-]+(\.[\w-]+)*")
_JWT: Final = re.compile(r"-BEGIN NATS USER JWT-+\s+(\S+)\s+-+END")
_SEED: Final = re.compile(r"-BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess:
    """Where NATS is, and the files to log in with; at most one way of these is set."""

    url: str = field(repr=False)
    """Addresses separated by commas; credentials may be in it, for development."""
    creds: SecretFile | None = None
    nkey: SecretFile | None = None
    username: str = ""
    password: SecretFile | None = None
    tls: TlsFiles = field(default_factory=TlsFiles)
    inbox_prefix: str = ""
    """Where answers to our requests go; empty for `_INBOX.` and the name of the connection."""

    @property
    def shown(self) -> str:
        """The addresses without credentials, for messages."""
        return without_secrets(self.url)

    @property
    def needs_tls(self) -> bool:
        """Whether nothing may be sent to a server without TLS."""
        return bool(self.tls) or self.url.strip().startswith("tls://")

    def read_creds(self) -> tuple[str, str]:
        """Return the JWT and the seed of the .creds file.

        Raises:
            CredentialsError: it cannot be read, or one of the two is missing.
        """
        if self.creds is None:
            raise CredentialsError("no .creds file is set")
        content = self.creds.read()
        jwt, seed = _JWT.search(content), _SEED.search(content)
        if jwt is None or seed is None:
            missing = "user JWT" if jwt is None else "nkey seed"
            raise CredentialsError(f"{self.creds}: not a .creds file: it has no {missing}")
        return jwt[1], seed[1]

    def hint(self) -> str:
        """Say which settings and files to check if the server refuses us."""
        if self.creds is not None:
            return f"check {self.creds}{self._expiry()}"
        if self.nkey is not None:
            return f"check {self.nkey}"
        if self.password is not None:
            return f"check {NATS_PREFIX}USERNAME ({self.username}) and {self.password}"
        if self.tls.cert is not None:
            return f"check {self.tls.cert}"
        names = ", ".join(f"{NATS_PREFIX}{name.upper()}" for name in _LOGINS)
        return f"check user and password of {NATS_PREFIX}URL, or set one of {names}"

    def _expiry(self) -> str:
        """When the JWT expired; empty if it has not, as far as this clock knows."""
        try:
            expiry = read_expiry(self.read_creds()[0])
            expires = datetime.fromtimestamp(expiry, UTC) if expiry is not None else None
        except (CredentialsError, ValueError, OverflowError, OSError):
            return ""
        if expires is None or expires >= datetime.now(UTC):
            return ""
        return f": it expired at {expires:%Y-%m-%d %H:%M:%S} UTC"


def nats_access(values: Mapping[str, Any]) -> NatsAccess:
    """Build the access from values such as `url` and `creds_file`.

    Raises:
        ConfigError: two ways to log in, half of one, or no subject; names the settings.
    """
    fields = AccessFields(NATS_PREFIX, values)
    prefix = fields.text("inbox_prefix")
    if prefix and not _SUBJECT.fullmatch(prefix):
        raise ConfigError(
            f"{NATS_PREFIX}INBOX_PREFIX: {prefix!r} is no subject like _INBOX.operator"
        )
    for number, login in enumerate(_LOGINS):
        fields.refuse_in_address(login, has_credentials="@" in fields.text("url"))
        for other in _LOGINS[number + 1 :]:
            fields.refuse_both(login, other)
    fields.require_pair("username", "password_file")
    return NatsAccess(
        url=fields.text("url"),
        creds=fields.file("creds_file"),
        nkey=fields.file("nkey_file"),
        username=fields.text("username"),
        password=fields.file("password_file"),
        tls=fields.tls(),
        inbox_prefix=prefix,
    )
