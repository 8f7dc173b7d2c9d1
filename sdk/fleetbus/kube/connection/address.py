"""The policy for addresses of API servers (rule S7).

Link-local and metadata addresses are never allowed, plain http and loopback only on request. The
address is checked as it is written, and each IP address again when a socket to it is opened: a name
may resolve differently at each request.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""A result of getaddrinfo."""
_IP = ipaddress.IPv4Address | ipaddress.IPv6Address
_SCHEMES: Final = ("https", "http")
_METADATA_NAMES: Final = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata.tencentyun.com",
    }
)
_METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            "100.100.100.200",  # Alibaba Cloud
            "168.63.129.16",  # Azure's host
            "192.0.0.192",  # Oracle Cloud
            "fd00:ec2::254",  # AWS
            "fd00:ec2::23",  # AWS, credentials of EKS pods
            "fd20:ce::254",  # Google Cloud
            "fd00:42::42",  # Scaleway
        ),
    )
)
"""Metadata services whose address is not link-local."""
_NAT64: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_THIS_NETWORK: Final = ipaddress.IPv4Network("0.0.0.0/8")
"""On Linux these lead to this machine."""
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")
_IPV4_BITS: Final = 0xFFFF_FFFF
_LOOPBACK: Final = "{} is loopback, which only FLEETBUS_ALLOW_LOOPBACK=1 (for development) allows"
_NOT_IN_URLS: Final = frozenset(' \\"<>^`{|}')


class AddressRefused(OSError):
    """An API server's name resolved to an address that is not allowed."""


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """The addresses that one API server may have.

    Args:
        http: plain http is allowed; over loopback it always is.
        loopback: this machine is allowed.
    """

    http: bool
    loopback: bool

    def refusal(self, url: str) -> str:
        """Why a server's URL is not allowed, before its name is resolved; empty if it is."""
        # URL parsers disagree about such characters, and another one opens the connection.
        if not url.isascii() or any(c in _NOT_IN_URLS or not c.isprintable() for c in url):
            return "the server address is not a URL"
        try:
            parsed = urlsplit(url)
            host = (parsed.hostname or "").rstrip(".")
            _ = parsed.port
        except ValueError:
            return "the server address is not a URL"
        if parsed.scheme not in _SCHEMES or not host:
            return "the server address is not an https:// URL"
        if refused := self.host_refusal(host):
            return refused
        if parsed.scheme == "http" and not self.http and not _is_loopback_name(host):
            return "the server address is plain http, which only an explicit field allows"
        return ""

    def proxy_refusal(self, url: str) -> str:
        """The same for a proxy, for which plain http is common."""
        return AddressPolicy(http=True, loopback=self.loopback).refusal(url)

    def host_refusal(self, host: str) -> str:
        """Why a host name or IP address in any spelling is not allowed; empty if it is."""
        if host in _METADATA_NAMES:
            return f"{host} is a metadata service"
        if _is_loopback_name(host) and not self.loopback:
            return _LOOPBACK.format(host)
        ip = _ip_of(host)
        return self._ip_refusal(ip) if ip is not None else ""

    def open_socket(self, address_info: AddressInfo) -> socket.socket:
        """Create a socket for one resolved address: the `socket_factory` of aiohttp.

        Raises:
            AddressRefused: the address is not allowed.
        """
        family, kind, proto, _, address = address_info
        if refused := self.host_refusal(str(address[0])):
            raise AddressRefused(errno.EACCES, refused)
        return socket.socket(family=family, type=kind, proto=proto)

    def _ip_refusal(self, ip: _IP) -> str:
        for candidate in (ip, *_embedded(ip)):
            if candidate.is_link_local:
                return f"{ip} is link-local"
            if candidate in _METADATA:
                return f"{ip} is a metadata service"
            if candidate.is_multicast or candidate == _BROADCAST:
                return f"{ip} is not a unicast address"
            if _is_this_machine(candidate) and not self.loopback:
                return _LOOPBACK.format(ip)
        return ""


def _is_this_machine(ip: _IP) -> bool:
    return ip.is_loopback or ip.is_unspecified or ip in _THIS_NETWORK


def _is_loopback_name(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    ip = _ip_of(host)
    return ip is not None and any(map(_is_this_machine, (ip, *_embedded(ip))))


def _ip_of(host: str) -> _IP | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        # Decimal, hexadecimal, octal and short forms, as the resolver reads them.
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _embedded(ip: _IP) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that are embedded in an IPv6 address."""
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    teredo = ip.teredo or ()
    addresses = [a for a in (ip.ipv4_mapped, ip.sixtofour, *teredo) if a is not None]
    if ip in _COMPATIBLE or any(ip in network for network in _NAT64):
        addresses.append(ipaddress.IPv4Address(int(ip) & _IPV4_BITS))
    return addresses
