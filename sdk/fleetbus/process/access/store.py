"""The address of the store, and what we log in with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from fleetbus.errors import ConfigError
from fleetbus.process.access.secret_files import AccessFields, SecretFile, TlsFiles
from fleetbus.process.redact import without_secrets

STORE_PREFIX: Final = "FLEETBUS_REDIS_"
STORE_FIELDS: Final = (
    *("username", "password_file", "sentinel_username", "sentinel_password_file"),
    *("ca_file", "cert_file", "key_file"),
)
"""Beside `url`; in lower case after the prefix of a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """Where Redis or Valkey is, and the files to log in with."""

    url: str = field(repr=False)
    """See `fleetbus.store.address`; credentials may be in it, for development."""
    username: str = ""
    password: SecretFile | None = None
    sentinel_username: str = ""
    sentinel_password: SecretFile | None = None
    tls: TlsFiles = field(default_factory=TlsFiles)

    @property
    def shown(self) -> str:
        """The address without credentials, for messages."""
        return without_secrets(self.url)


def store_access(values: Mapping[str, Any]) -> StoreAccess:
    """Build the access from values such as `url` and `password_file`.

    A user may have no name: the password is then that of the default user.

    Raises:
        ConfigError: credentials in the address and in a file, a user without a password, or
            certificates for an address without TLS; names the settings.
    """
    fields = AccessFields(STORE_PREFIX, values)
    of_servers, of_sentinels = _credentials_in(fields.text("url"))
    for field_name in ("username", "password_file"):
        fields.refuse_in_address(field_name, has_credentials=of_servers)
        fields.refuse_in_address(f"sentinel_{field_name}", has_credentials=of_sentinels)
    for user in ("username", "sentinel_username"):
        password = user.replace("username", "password_file")
        if fields.text(user) and not fields.text(password):
            raise ConfigError(f"setting {fields.name(user)} needs {fields.name(password)} as well")
    tls = fields.tls()
    if tls and not fields.text("url").startswith("rediss"):
        used = "ca_file" if tls.ca else "cert_file"
        raise ConfigError(
            f"setting {fields.name(used)} needs an address with TLS in {fields.name('url')}:"
            " rediss:// instead of redis://"
        )
    return StoreAccess(
        url=fields.text("url"),
        username=fields.text("username"),
        password=fields.file("password_file"),
        sentinel_username=fields.text("sentinel_username"),
        sentinel_password=fields.file("sentinel_password_file"),
        tls=tls,
    )


def _credentials_in(url: str) -> tuple[bool, bool]:
    """Whether an address has credentials of servers, and of Sentinels."""
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
    except ValueError:  # reported where the address is used
        return False, False
    names = set(options)
    return (
        "@" in parts.netloc or bool(names & {"username", "password"}),
        bool(names & {"sentinel_username", "sentinel_password"}),
    )
