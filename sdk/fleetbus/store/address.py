"""Addresses of the store: one server, a master that Sentinels name, or a Cluster.

    redis://[USER:PASSWORD@]HOST:6379[/DATABASE]
    redis+sentinel://[USER:PASSWORD@]HOST:26379[,HOST:26379…]/MASTER[/DATABASE]
    redis+cluster://[USER:PASSWORD@]HOST:6379[,HOST:6379…]

With `rediss` instead of `redis` connections use TLS. User and password are those of the servers;
those of the Sentinels follow as `?sentinel_username=…&sentinel_password=…`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from fleetbus.errors import StoreError
from fleetbus.process.redact import without_secrets

_SENTINEL_PORT: Final = 26379
_REDIS_PORT: Final = 6379
_LAST_PORT: Final = 65535
_FORMS: Final = (
    "an address is like redis://HOST:6379/0, redis+sentinel://HOST:26379,HOST:26379/MASTER/0 or"
    " redis+cluster://HOST:6379,HOST:6379"
)

Place = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password of a connection; empty if it does not authenticate."""

    username: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """A master by its name, and the Sentinels that know where it is."""

    sentinels: tuple[Place, ...]
    master: str
    database: int
    credentials: Credentials
    sentinel_credentials: Credentials
    is_tls: bool


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Some nodes of a Cluster, of which any knows the others."""

    nodes: tuple[Place, ...]
    credentials: Credentials
    is_tls: bool


def parse_address(url: str) -> SentinelAddress | ClusterAddress | None:
    """Parse the address of Sentinels or of a Cluster; None for any other, which redis-py parses.

    Raises:
        StoreError: it is malformed; the message has no password.
    """
    scheme, separator, _ = url.partition("://")
    protocol, plus, kind = scheme.partition("+")
    if not separator or not plus:
        return None
    if protocol not in {"redis", "rediss"} or kind not in {"sentinel", "cluster"}:
        raise _invalid(url, f"the scheme {scheme!r} is unknown; {_FORMS}")
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:  # its message may quote the password
        raise _invalid(url, _FORMS) from None
    if parts.fragment or "@" in parts.path:  # it ends the hosts too early: quote nothing
        raise _invalid(url, f"write / ? # and @ in a password as %2F %3F %23 and %40; {_FORMS}")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    credentials = Credentials(unquote(username), unquote(password))
    path = [unquote(segment) for segment in parts.path.strip("/").split("/") if segment]
    is_tls = protocol == "rediss"
    if kind == "sentinel":
        settings = {name: values[-1] for name, values in options.items()}
        return _of_sentinels(url, hosts, path, settings, credentials, is_tls=is_tls)
    if options or path not in ([], ["0"]):
        raise _invalid(url, "a Cluster has only the database 0, and no options")
    return ClusterAddress(_places(url, hosts, _REDIS_PORT), credentials, is_tls)


def _of_sentinels(
    url: str,
    hosts: str,
    path: Sequence[str],
    options: dict[str, str],
    credentials: Credentials,
    *,
    is_tls: bool,
) -> SentinelAddress:
    master, *database = path or [""]
    if not master or len(database) > 1 or not all(map(str.isdigit, database)):
        raise _invalid(url, f"the hosts must be followed by /MASTER or /MASTER/DATABASE; {_FORMS}")
    of_sentinels = Credentials(
        options.pop("sentinel_username", ""), options.pop("sentinel_password", "")
    )
    if options:
        raise _invalid(url, f"unknown options: {', '.join(sorted(options))}")
    return SentinelAddress(
        _places(url, hosts, _SENTINEL_PORT),
        master,
        int(database[0]) if database else 0,
        credentials,
        of_sentinels,
        is_tls,
    )


def _places(url: str, hosts: str, port: int) -> tuple[Place, ...]:
    return tuple(_place(url, host, port) for host in hosts.split(","))


def _place(url: str, text: str, default: int) -> Place:
    try:
        parsed = urlsplit(f"//{text}")
        host, port = parsed.hostname, parsed.port or default
    except ValueError:
        host, port = None, 0
    if not host or not 0 < port <= _LAST_PORT:
        # Not quoted: before an unescaped / or ? of a password, its beginning looks like a port.
        raise _invalid(url, f"a host, or the number of its port, is invalid; {_FORMS}")
    return host, port


def _invalid(url: str, why: str) -> StoreError:
    return StoreError(f"Redis at {without_secrets(url)}: invalid address: {why}")
