"""TLS contexts that trust what client-go trusts."""

from __future__ import annotations

import re
import ssl
import tempfile
from pathlib import Path
from typing import Final

_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----"
)


def client_context(ca: bytes, *, insecure: bool) -> ssl.SSLContext:
    """A context for a client.

    Args:
        ca: certificate authorities in PEM, the only ones to trust; empty for those of the system.
        insecure: leave the certificate of the server unverified.

    Raises:
        ValueError: there is no certificate in `ca`.
    """
    if not ca:
        context = ssl.create_default_context()
    elif blocks := _CERTIFICATE.findall(ca):
        # Only the certificates: comments and other blocks may stand between them.
        try:
            context = ssl.create_default_context(cadata=b"\n".join(blocks).decode("ascii"))
        except ssl.SSLError as e:
            raise ValueError(str(e)) from e
    else:
        raise ValueError("no certificate in PEM")
    # As in Go: any certificate of the list is an anchor, and RFC 5280's formalities, which Python
    # demands since 3.13, are no reason to refuse the authorities that distributions generate.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def use_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Let a context show a client certificate.

    Raises:
        ValueError: certificate and key are malformed, or do not belong together.
    """
    # OpenSSL reads them from files only.
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "certificate"), Path(folder, "key")
        for path, pem in zip(paths, (certificate, key), strict=True):
            path.touch(0o600)
            path.write_bytes(pem)
        try:
            # A password of our own: OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(*paths, password="")
        except (ssl.SSLError, OSError) as e:
            raise ValueError(str(e)) from e
