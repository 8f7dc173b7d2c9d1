"""TLS of the query API, from files that are read anew when they change.

A mounted Secret is swapped as a whole, so every handshake compares the files with those that were
read last. A new pair that cannot be loaded, as when only one of the files is there yet, is tried
again at the next handshake; until then the previous one is served.
"""

from __future__ import annotations

import pathlib
import ssl

import structlog

from fleetbus.errors import ConfigError
from fleetbus.process.log_once import LogOnce

log = structlog.get_logger()

_Signature = tuple[tuple[int, int, int], ...]


class ServerTls:
    """The certificate that the server shows.

    Args:
        cert_file: the certificate and its chain, PEM.
        key_file: its private key, PEM.

    Raises:
        ConfigError: they cannot be read, or do not belong together.
    """

    def __init__(self, cert_file: pathlib.Path, key_file: pathlib.Path) -> None:
        self._files = (cert_file, key_file)
        self._failing = LogOnce()
        try:
            self._signature = self._read_signature()
            self._current = self._load()
        except (OSError, ValueError) as e:
            raise ConfigError(
                "settings FLEETBUS_QUERY_API_TLS_CERT_FILE and FLEETBUS_QUERY_API_TLS_KEY_FILE: "
                f"{cert_file}, {key_file}: {_explain(e)}"
            ) from None
        self.context = self._load()
        """The context to listen with."""
        self.context.sni_callback = self._choose

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext
    ) -> None:
        """Give a new connection the newest certificate; OpenSSL calls it for each handshake."""
        connection.context = self._newest()

    def _newest(self) -> ssl.SSLContext:
        try:
            signature = self._read_signature()
            if signature != self._signature:
                self._current = self._load()
                self._signature = signature
                self._failing.reset()
                log.info("tls_certificate_reloaded", file=str(self._files[0]))
        except (OSError, ValueError) as e:
            if self._failing.should_log(text := _explain(e)):
                log.warning("tls_certificate_not_reloaded", file=str(self._files[0]), error=text)
        return self._current

    def _read_signature(self) -> _Signature:
        stats = [path.stat() for path in self._files]
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        cert_file, key_file = self._files
        context.load_cert_chain(cert_file, key_file, password=_refuse_passphrase)
        return context


def _refuse_passphrase() -> str:
    raise ValueError("the private key has a passphrase")  # else OpenSSL asks on the terminal


def _explain(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no PEM certificate with its private key: {error.reason or error}"
    return str(getattr(error, "strerror", "") or error)
