"""Certificates: of servers, and of clients, whose subject says who they are.

trustme makes the authorities and the servers' certificates. A client's certificate is made here,
because a Kubernetes user may have several groups, each an O of its own, and trustme knows one.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import trustme
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL; Python has no name for it


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate with its key.

    Attributes:
        certificate: PEM.
        key: PEM, PKCS #8, without a password.
    """

    certificate: bytes
    key: bytes


class Authority:
    """Issues certificates and knows those that it issued."""

    def __init__(self, name: str) -> None:
        self._ca = trustme.CA(organization_name="fleetbus devfleet", organization_unit_name=name)

    @property
    def pem(self) -> bytes:
        """The certificate that others have to trust."""
        return self._ca.cert_pem.bytes()

    @cached_property
    def _certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.pem)

    def server_context(self, *hosts: str) -> ssl.SSLContext:
        """The TLS side of a server that is reached under these names and addresses."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*hosts).configure_cert(context)
        return context

    def issue_client(
        self, name: str, groups: Iterable[str], *, begins: datetime, ends: datetime
    ) -> ClientCertificate:
        """A certificate for a user: the name as CN, each group as an O.

        Raises:
            ValueError: A name is longer than X.509 allows, 64 bytes.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        if name:
            attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
        issuer_key = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(attributes))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_SIGNS_ONLY, True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key.value),
                False,
            ),
        ]
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        signed = builder.sign(self._signing_key, hashes.SHA256())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return ClientCertificate(signed.public_bytes(Encoding.PEM), pem)

    @cached_property
    def _signing_key(self) -> ec.EllipticCurvePrivateKey:
        key = load_pem_private_key(self._ca.private_key_pem.bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - trustme's default
        return key

    def has_issued(self, certificate: x509.Certificate) -> bool:
        """Whether this authority signed the certificate."""
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True


_SIGNS_ONLY = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def ask_for_clients(context: ssl.SSLContext, authorities: Iterable[Authority]) -> None:
    """Let a server ask clients for a certificate of one of these authorities.

    OpenSSL breaks off the handshake for a certificate of any other authority. The validity is left
    to the authentication, so that a certificate that ran out is answered 401 as by a real server.
    """
    for authority in authorities:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=authority.pem.decode())
        context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
