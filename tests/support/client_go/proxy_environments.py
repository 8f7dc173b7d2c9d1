"""Servers, and the variables of the environment that name their proxy."""

from __future__ import annotations


def proxy_environments() -> list[tuple[str, dict[str, str]]]:
    """Each server with each environment."""
    proxy = "http://proxy.example.org:3128"
    servers = [
        "https://api.example.org:6443",
        "https://example.org",
        "https://10.1.2.3:6443",
        "https://[2001:db8::1]:6443",
        "https://127.0.0.1:6443",
        "https://localhost:6443",
    ]
    exempt = [
        "",
        "*",
        "example.org",
        ".example.org",
        "*.example.org",
        "api.example.org:6443",
        "api.example.org:443",
        "EXAMPLE.ORG , 10.0.0.0/8",
        "10.1.2.3",
        "10.1.2.3:6443",
        "10.1.2.3:443",
        "10.1.0.0/16",
        "2001:db8::/32",
        "2001:db8::1",
        "[2001:db8::1]",
        "[2001:db8::1]:6443",
        "ple.org",
        "org",
        "1.2.3",
        ",,",
    ]
    pairs = [(s, {"HTTPS_PROXY": proxy, "NO_PROXY": e}) for s in servers for e in exempt]
    api = servers[0]
    return [
        *pairs,
        (api, {"https_proxy": proxy}),
        (api, {"HTTP_PROXY": proxy}),
        (api, {"HTTPS_PROXY": "proxy.example.org:3128"}),
        (api, {"HTTPS_PROXY": "https://me:p@proxy.example.org"}),
        (api, {"HTTPS_PROXY": proxy, "no_proxy": "example.org"}),
        (api, {"HTTPS_PROXY": proxy, "NO_PROXY": "x", "no_proxy": "example.org"}),
        (api, {"HTTPS_PROXY": "socks5://proxy.example.org"}),
    ]
