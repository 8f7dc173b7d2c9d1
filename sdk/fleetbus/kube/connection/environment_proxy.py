"""The proxy of the environment: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as client-go reads them."""

from __future__ import annotations

import ipaddress
import os
from typing import Final
from urllib.parse import urlsplit

from fleetbus.errors import ConfigError

_PORTS: Final = {"http": "80", "https": "443"}
_SCHEMES: Final = ("http", "https")


def environment_proxy(url: str) -> str:
    """The proxy for a URL; empty for none.

    This machine is always reached directly.

    Raises:
        ConfigError: the variable does not have the URL of an http or https proxy.
    """
    parsed = urlsplit(url)
    name = f"{parsed.scheme.upper()}_PROXY"
    proxy = _variable(name)
    if not proxy or not parsed.hostname or _is_direct(parsed.hostname, parsed.scheme, parsed.port):
        return ""
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if urlsplit(proxy).scheme not in _SCHEMES or not urlsplit(proxy).hostname:
        raise ConfigError(f"{name} is not the URL of an http or https proxy")
    return proxy


def _variable(name: str) -> str:
    return os.environ.get(name) or os.environ.get(name.lower(), "")


def _is_direct(host: str, scheme: str, port: int | None) -> bool:
    host = host.lower().rstrip(".")
    ip = _address(host)
    if host == "localhost" or (ip is not None and ip.is_loopback):
        return True
    port_text = str(port or _PORTS.get(scheme, ""))
    return any(_matches(rule, host, port_text, ip) for rule in _variable("NO_PROXY").split(","))


def _matches(
    rule: str, host: str, port: str, ip: ipaddress.IPv4Address | ipaddress.IPv6Address | None
) -> bool:
    rule = rule.strip().lower()
    if rule == "*":
        return True
    if "/" in rule:
        return ip is not None and _is_inside(ip, rule)
    name, rule_port = _split_port(rule)
    if not name or rule_port not in ("", port):
        return False
    address = _address(name)
    if address is not None or ip is not None:
        return address == ip
    name = name.removeprefix("*")
    return host.endswith(name if name.startswith(".") else f".{name}") or host == name


def _split_port(rule: str) -> tuple[str, str]:
    if rule.startswith("["):
        name, colon, port = rule[1:].partition("]:")
        return (name, port) if colon else (rule, "")
    name, colon, port = rule.rpartition(":")
    if colon and ":" not in name and port.isdigit():
        return name, port
    return rule, ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


def _is_inside(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, rule: str) -> bool:
    try:
        return ip in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return False
