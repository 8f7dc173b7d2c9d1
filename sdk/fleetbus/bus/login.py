"""Logs in to NATS with files that are read anew at each attempt (rules B13, S2).

nats-py reads user and password once, keeps the TLS context that it was given, and closes for good
when a running connection is refused, which is how a server ends those whose credentials were
rotated. Here each attempt uses what the files hold now, and a refused client goes on trying.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

import nats.errors
import nkeys
from nats.aio.client import Client

from fleetbus.errors import CredentialsError
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import SecretFile
from fleetbus.process.waiting import pause_after

_REFUSAL: Final = re.compile(
    r"authori[sz]ation|authentication|credentials|tls required|nkeys", re.IGNORECASE
)
"""In the errors of a server that refuses whoever connects, or is connected."""
_PERMISSIONS: Final = "permissions violation"
SERVER_FLOOR: Final = (2, 12)
"""Older servers accept newer fields and ignore them without an error."""
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_ALERT: Final = "ALERT"
"""In the reason of an SSLError if the server refuses our certificate."""


class LoginError(nats.errors.Error):
    """We cannot log in as things are; nats-py tries again."""


class TooOldError(LoginError):
    """The server is too old to log in to."""


def is_refusal(error: Exception) -> bool:
    """Whether somebody has to mend credentials or certificates, here or at the server."""
    if isinstance(error, LoginError | ssl.SSLError):
        return True
    text = str(error)
    return _PERMISSIONS not in text.lower() and _REFUSAL.search(text) is not None


def describe_refusal(error: Exception, access: NatsAccess) -> str:
    """Name the settings and files to check, never their content."""
    if isinstance(error, LoginError):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        check = access.tls.ca or "FLEETBUS_NATS_CA_FILE, which is not set"
        return f"the server's certificate is not accepted: {error.verify_message}; check {check}"
    if isinstance(error, ssl.SSLError) and _ALERT in (error.reason or ""):
        check = access.tls.cert or "FLEETBUS_NATS_CERT_FILE, which is not set"
        return f"the server refuses our certificate: {error.reason}; check {check}"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails: {error.reason or error}"
    return f"{error}; {access.hint()}"


class LoginClient(Client):
    """nats-py's client, which reads its credentials anew at each attempt.

    Attributes:
        access: set before `connect`.
    """

    access: NatsAccess

    def __init__(self) -> None:
        super().__init__()
        self._refusals = 0
        """One after another."""

    async def _select_next_server(self) -> None:
        if self._refusals:
            await pause_after(self._refusals)
        await super()._select_next_server()

    async def _process_connect_init(self) -> None:
        try:
            self._prepare_login()
            await self._greet()
            self._require_answer()
        except Exception as e:
            self._refusals = self._refusals + 1 if is_refusal(e) else 0
            self._abandon_transport()
            raise
        self._refusals = 0

    async def _greet(self) -> None:
        try:
            await super()._process_connect_init()
        except ssl.SSLError:  # one of them is a ValueError as well
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as e:
            # nats-py takes what it reads for a short line with an object, and would not try again.
            raise LoginError("what answers there is no NATS server: check host and port") from e

    def _abandon_transport(self) -> None:
        """Close it, and do not wait: nats-py would for ever, after a TLS handshake that failed."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
            # TLS would keep the socket until the server has answered its farewell.
            socket: asyncio.StreamWriter | None = vars(transport).get("_bare_io_writer")
            if socket is not None:
                socket.close()

    def _require_answer(self) -> None:
        if not self.is_connected:  # nats-py takes the end of the connection for an answer
            raise LoginError(f"the server ended the login; {self.access.hint()}")

    def _prepare_login(self) -> None:
        """Read all files that are set.

        Raises:
            LoginError: one is unusable.
        """
        access = self.access
        try:
            if access.needs_tls:
                self.options["tls"] = access.tls.make_context()
            if access.creds is not None:
                jwt, seed = access.read_creds()
                self._signature_cb = _signer(access.creds, seed)[1]
                self._user_jwt_cb = jwt.encode
            elif access.nkey is not None:
                public, self._signature_cb = _signer(access.nkey, access.nkey.read())
                self._public_nkey = public
            elif access.password is not None:
                self.options["user"] = access.username
                self.options["password"] = access.password.read()
        except CredentialsError as e:
            raise LoginError(str(e)) from None

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            _check_version(str(info.get("version") or "unknown"))
        if initial_connection and self.access.needs_tls and not info.get("tls_required"):
            if not info.get("tls_available"):
                # Credentials would go over the wire as they are.
                raise LoginError("the server offers no TLS, which the settings demand")
            self._server_info["tls_required"] = True  # nats-py reads it after this
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        error = nats.errors.Error(f"nats: {err_msg.strip(chr(39))}")
        if not is_refusal(error):
            await super()._process_err(err_msg)
            return
        await self._error_cb(error)
        await self._process_op_err(error)


def _check_version(version: str) -> None:
    """Refuse a server before anything is sent to it.

    Raises:
        TooOldError: it is too old, or names no version.
    """
    match = _VERSION.match(version)
    if match is None or (int(match[1]), int(match[2])) < SERVER_FLOOR:
        floor = ".".join(map(str, SERVER_FLOOR))
        raise TooOldError(
            f"runs nats-server {version}, which is too old: {floor} is needed, because it would"
            " silently ignore settings"
        )


def _signer(file: SecretFile, seed: str) -> tuple[str, Callable[[str], bytes]]:
    """The public key of a seed, and what signs a server's nonce with it.

    Raises:
        CredentialsError: it is no seed.
    """
    try:
        pair: Any = cast("Any", nkeys).from_seed(bytearray(seed.strip().encode()))
        public = str(pair.public_key.decode())
    except (nkeys.NkeysError, ValueError):
        raise CredentialsError(f"{file}: not the seed of an nkey") from None

    def sign(nonce: str) -> bytes:
        return base64.b64encode(pair.sign(nonce.encode()))

    return public, sign
