"""Checks of the certificates that servers show when a connection to them begins."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Final, cast
from urllib.parse import urlsplit

import orjson

from fleetbus.bus.addresses import split_addresses
from fleetbus.errors import CredentialsError, StoreError
from fleetbus.kube.json_fields import mapping
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import TlsFiles
from fleetbus.process.access.store import StoreAccess
from fleetbus.process.findings import Finding, error
from fleetbus.process.redact import without_secrets
from fleetbus.store.address import ClusterAddress, Place, SentinelAddress, parse_address
from fleetbus_cli.doctor.certificate_files import read_der
from fleetbus_cli.doctor.expiry import check_validity

WITHIN: Final = timedelta(seconds=5)
"""Time that a server has to show its certificate; one that does not is reported elsewhere."""
_NATS_PORT: Final = 4222
_REDIS_PORT: Final = 6379
_HTTPS_PORT: Final = 443
_RENEW: Final = "renew the certificate; docs/identities.md says when servers read a new one"
_INFO: Final = b"INFO "


async def check_nats_certificates(access: NatsAccess) -> AsyncIterator[Finding]:
    """Check the certificate of each NATS server, if it uses TLS."""
    for address in split_addresses(access.url):
        parts = urlsplit(address if "://" in address else f"nats://{address}")
        place = (parts.hostname or "", parts.port or _NATS_PORT)
        async for finding in _check("nats", place, access.tls, is_nats=True):
            yield finding


async def check_store_certificates(access: StoreAccess) -> AsyncIterator[Finding]:
    """Check the certificate of each server that the address of the store names."""
    if not access.url.startswith("rediss"):
        return
    try:
        address = parse_address(access.url)
    except StoreError:
        return  # reported where the store is checked
    for place in _places(address, access.url):
        async for finding in _check("store", place, access.tls):
            yield finding


def _places(address: object, url: str) -> Sequence[Place]:
    if isinstance(address, ClusterAddress):
        return address.nodes
    if isinstance(address, SentinelAddress):
        return address.sentinels
    parts = urlsplit(url)
    return [(parts.hostname or "", parts.port or _REDIS_PORT)]


async def check_api_certificate(url: str, tls: TlsFiles) -> AsyncIterator[Finding]:
    """Check the certificate of the query API, if its address has TLS."""
    parts = urlsplit(without_secrets(url))
    if parts.scheme == "https":
        place = (parts.hostname or "", parts.port or _HTTPS_PORT)
        async for finding in _check("query-api", place, tls):
            yield finding


async def _check(
    about: str, place: Place, tls: TlsFiles, *, is_nats: bool = False
) -> AsyncIterator[Finding]:
    """Check one server; nothing if it does not answer, which is found elsewhere."""
    subject = f"the certificate of {place[0]}:{place[1]}"
    try:
        async with asyncio.timeout(WITHIN.total_seconds()):
            certificate = await _certificate(place, tls, is_nats=is_nats)
        validity = read_der(certificate) if certificate else None
    except ssl.SSLCertVerificationError as e:
        check = str(tls.ca) if tls.ca else "the CA file, which is not set"
        message = f"{subject} is not accepted: {e.verify_message}"
        yield error(f"certificate of {about}", message, f"check {check}")
    except CredentialsError as e:
        yield error(f"certificate of {about}", str(e), "mount the file, or correct the setting")
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return
    else:
        if validity:
            yield check_validity(f"certificate of {about}", subject, validity, _RENEW)


async def _certificate(place: Place, tls: TlsFiles, *, is_nats: bool) -> bytes:
    """The certificate of a server; empty if it offers no TLS.

    NATS sends a line before TLS begins.
    """
    context = tls.make_context()
    host, port = place
    reader, writer = await asyncio.open_connection(host, port, ssl=None if is_nats else context)
    try:
        if is_nats:
            info = mapping(orjson.loads((await reader.readline()).removeprefix(_INFO)))
            if not (info.get("tls_required") or info.get("tls_available")):
                return b""
            await writer.start_tls(context, server_hostname=host)
        ssl_object = writer.get_extra_info("ssl_object")
        return cast("bytes | None", ssl_object.getpeercert(binary_form=True)) or b""
    finally:
        writer.close()
