"""Logs in to the store with files that are read anew for each connection (rule S8)."""

from __future__ import annotations

import socket
import ssl
from typing import Any, cast

import redis.connection
import redis.exceptions
from redis.asyncio.connection import AbstractConnection, SSLConnection
from redis.credentials import CredentialProvider

from fleetbus.errors import CredentialsError
from fleetbus.process.access.secret_files import SecretFile, TlsFiles
from fleetbus.process.access.store import StoreAccess
from fleetbus.store.address import Credentials


class FileCredentials(CredentialProvider):
    """A user whose password is in a file.

    Args:
        username: empty for the default user.
        password: read for each connection.
    """

    def __init__(self, username: str, password: SecretFile) -> None:
        self._username = username
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Read the password.

        Raises:
            redis.exceptions.ConnectionError: the file is unusable.
        """
        try:
            password = self._password.read()
        except CredentialsError as e:
            raise redis.exceptions.ConnectionError(str(e)) from None
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Read the password, which is a line, on the event loop.

        Raises:
            redis.exceptions.ConnectionError: the file is unusable.
        """
        return self.get_credentials()


def authentication(
    credentials: Credentials, username: str = "", password: SecretFile | None = None
) -> dict[str, Any]:
    """The options of a connection that authenticates, as redis-py names them.

    Args:
        credentials: those of the address.
        username: of the file.
        password: used instead of the address's, if it is set.
    """
    if password is not None:
        return {"credential_provider": FileCredentials(username, password)}
    fields = {"username": credentials.username, "password": credentials.password}
    return {name: value for name, value in fields.items() if value}


def authentication_of(access: StoreAccess, credentials: Credentials) -> dict[str, Any]:
    """The options of a connection to a server."""
    return authentication(credentials, access.username, access.password)


def sentinel_authentication(access: StoreAccess, credentials: Credentials) -> dict[str, Any]:
    """The options of a connection to a Sentinel."""
    return authentication(credentials, access.sentinel_username, access.sentinel_password)


def reading_tls_in_threads(plain: type[Any], tls: TlsFiles) -> type[Any]:
    """The same as `reading_tls`, for the connections of a client for threads."""
    if not tls or not issubclass(plain, redis.connection.SSLConnection):
        return plain
    return type(plain.__name__, (_ReadingTlsInThreads, plain), {"tls_files": tls})


class _ReadingTlsInThreads:
    """Mixed into a connection with TLS of redis-py for threads.

    Attributes:
        tls_files: of the class.
    """

    tls_files: TlsFiles

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        """Take the place of redis-py's, which trusts the machine's CAs beside ours."""
        try:
            context = self.tls_files.make_context()
        except CredentialsError as e:
            raise redis.exceptions.ConnectionError(str(e)) from None
        return context.wrap_socket(sock, server_hostname=cast("Any", self).host)


def reading_tls(plain: type[AbstractConnection], tls: TlsFiles) -> type[AbstractConnection]:
    """Return the same class of connection, which reads the files each time it connects.

    redis-py keeps what it has read, and trusts the machine's CAs beside ours.
    """
    if not tls or not issubclass(plain, SSLConnection):
        return plain
    return type(plain.__name__, (_ReadingTls, plain), {"tls_files": tls})


class _ReadingTls:
    """Mixed into a connection with TLS of redis-py.

    Attributes:
        tls_files: of the class.
    """

    tls_files: TlsFiles

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        cast("Any", self).ssl_context = _FreshContext(self.tls_files)


class _FreshContext:
    """Takes the place of redis-py's cached context."""

    def __init__(self, tls: TlsFiles) -> None:
        self._tls = tls

    def get(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            CredentialsError: one is unusable; redis-py makes a ConnectionError of it.
        """
        return self._tls.make_context()
