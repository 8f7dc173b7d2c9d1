"""Credentials and certificates in files, which are read anew for each connection.

They are mounted Secrets: whoever rotates one replaces the file, and no process is restarted.
"""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fleetbus.errors import ConfigError, CredentialsError

if TYPE_CHECKING:
    import ssl

_LIMIT: Final = 1024 * 1024
"""Bytes of a file: no Secret of Kubernetes is larger."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file with a secret, and the setting that names it."""

    setting: str
    path: pathlib.Path

    def __str__(self) -> str:
        return f"{self.setting} ({self.path})"

    def read(self) -> str:
        """Return the content without the line end.

        Raises:
            CredentialsError: it is missing, unreadable, too large, empty, no text or no file;
                never quotes it.
        """
        try:
            content = self._read_bytes().decode().rstrip("\r\n")
        except OSError as e:
            raise CredentialsError(f"{self}: cannot be read: {e.strerror or e}") from None
        except UnicodeDecodeError:  # its text quotes a byte
            raise CredentialsError(f"{self}: the file is not UTF-8") from None
        if not content.strip():
            raise CredentialsError(f"{self}: the file is empty")
        return content

    def _read_bytes(self) -> bytes:
        # Not blocking: to open a FIFO would wait for its writer, and with it the event loop.
        with os.fdopen(
            os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CredentialsError(f"{self}: not a regular file")
            content = file.read(_LIMIT + 1)
        if len(content) > _LIMIT:
            raise CredentialsError(f"{self}: larger than {_LIMIT // 1024} KiB")
        return content


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The CA that signs the server's certificate, and our own certificate with its key.

    Without a CA the server's certificate must be signed by one that the machine trusts.
    """

    ca: SecretFile | None = None
    cert: SecretFile | None = None
    key: SecretFile | None = None

    def __bool__(self) -> bool:
        return bool(self.ca or self.cert)

    def make_context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            CredentialsError: one cannot be read, or is no certificate or key.
        """
        context = self._trusting()
        if self.cert is not None and self.key is not None:
            self.cert.read()
            self.key.read()
            try:
                # Without a password openssl would ask for one at the terminal.
                context.load_cert_chain(self.cert.path, self.key.path, password=lambda: "")
            except (OSError, ValueError):
                raise CredentialsError(
                    f"{self.cert} and {self.key}: not a certificate with its unencrypted key, in"
                    " PEM"
                ) from None
        return context

    def _trusting(self) -> ssl.SSLContext:
        import ssl  # noqa: PLC0415 -- import cost

        if self.ca is None:
            return ssl.create_default_context()
        content = self.ca.read()
        try:
            return ssl.create_default_context(cadata=content)
        except (ssl.SSLError, ValueError):
            raise CredentialsError(f"{self.ca}: no certificate in PEM") from None


@dataclass(frozen=True, slots=True)
class AccessFields:
    """The settings of one server by their names without a prefix, such as `ca_file`.

    Args:
        prefix: of the settings, such as `FLEETBUS_NATS_`.
        values: empty strings and None are not set.
    """

    prefix: str
    values: Mapping[str, Any]

    def name(self, field: str) -> str:
        """The environment variable of a field."""
        return f"{self.prefix}{field.upper()}"

    def text(self, field: str) -> str:
        """The value of a field, or an empty string."""
        return str(self.values.get(field) or "")

    def file(self, field: str) -> SecretFile | None:
        """The file that a field names."""
        path = self.text(field)
        return SecretFile(self.name(field), pathlib.Path(path).expanduser()) if path else None

    def tls(self) -> TlsFiles:
        """The files for TLS.

        Raises:
            ConfigError: a certificate without a key, or a key without a certificate.
        """
        self.require_pair("cert_file", "key_file")
        return TlsFiles(self.file("ca_file"), self.file("cert_file"), self.file("key_file"))

    def require_pair(self, first: str, second: str) -> None:
        """Check that both fields are set, or none.

        Raises:
            ConfigError: only one is.
        """
        for field_name, other in ((first, second), (second, first)):
            if self.text(field_name) and not self.text(other):
                raise ConfigError(
                    f"setting {self.name(field_name)} needs {self.name(other)} as well"
                )

    def refuse_both(self, first: str, second: str) -> None:
        """Check that at most one of two fields is set.

        Raises:
            ConfigError: both are.
        """
        if self.text(first) and self.text(second):
            raise ConfigError(
                f"settings {self.name(first)} and {self.name(second)} are both set: use one"
            )

    def refuse_in_address(self, field: str, *, has_credentials: bool) -> None:
        """Check that credentials are not in the address if a field has them.

        Raises:
            ConfigError: they are in both.
        """
        if has_credentials and self.text(field):
            raise ConfigError(
                f"settings {self.name('url')} and {self.name(field)} both have credentials:"
                " remove user and password from the address"
            )
