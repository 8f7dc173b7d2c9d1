"""When certificates begin and end, without verifying them.

The ssl module decodes a certificate only of a peer that it has verified, so the two times are read
from the DER here; RFC 5280 fixes where they are.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Final, NamedTuple

from fleetbus.errors import CredentialsError

_PEM: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL | re.ASCII
)
_VERSION: Final = 0xA0
_SEQUENCE: Final = 0x30
_UTC_TIME: Final = 0x17
_LONG: Final = 0x80
_FIELDS_BEFORE: Final = 3
"""Serial number, signature algorithm and issuer stand before the validity."""


class Validity(NamedTuple):
    """When something begins and ends to be valid; the beginning may be unknown."""

    begins: datetime | None
    ends: datetime


def read_pem(text: str) -> list[Validity]:
    """The validity of each certificate in a PEM file.

    Raises:
        CredentialsError: it has none, or one that cannot be read; never quotes it.
    """
    certificates = _PEM.findall(text)
    if not certificates:
        raise CredentialsError("no certificate in PEM")
    try:
        return [read_der(ssl.PEM_cert_to_DER_cert(certificate)) for certificate in certificates]
    except ValueError as e:  # binascii.Error is one
        raise CredentialsError("a certificate cannot be read") from e


def read_der(content: bytes) -> Validity:
    """The validity of one certificate.

    Raises:
        ValueError: it is no certificate.
    """
    _, certificate, _ = _read(content, _SEQUENCE)
    _, fields, _ = _read(certificate, _SEQUENCE)
    tag, _, after = _read(fields)
    fields = after if tag == _VERSION else fields
    for _ in range(_FIELDS_BEFORE):
        _, _, fields = _read(fields)
    _, validity, _ = _read(fields, _SEQUENCE)
    first, begins, fields = _read(validity)
    second, ends, _ = _read(fields)
    return Validity(_time(first, begins), _time(second, ends))


def _read(content: bytes, tag: int = 0) -> tuple[int, bytes, bytes]:
    """Split the first element off: its tag, its content, and what follows."""
    header, length = 2, content[1] if len(content) > 1 else -1
    if length > _LONG:
        header += length - _LONG
        length = int.from_bytes(content[2:header])
    end = header + length
    if length < 0 or end > len(content) or tag not in (0, content[0]):
        raise ValueError("not a certificate")
    return content[0], content[header:end], content[end:]


def _time(tag: int, content: bytes) -> datetime:
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(content.decode("ascii"), form).replace(tzinfo=UTC)
