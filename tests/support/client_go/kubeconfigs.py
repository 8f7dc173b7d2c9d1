"""Kubeconfigs of every kind that people have, for a comparison with client-go."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from support.client_go.proxy_environments import proxy_environments

V1: Final = "client.authentication.k8s.io/v1"
V1BETA1: Final = "client.authentication.k8s.io/v1beta1"
FOLDER: Final = "{folder}"
"""Stands for the folder of the kubeconfig."""
TOKEN: Final = "eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDB9."
"""An ID token that expires in 2100."""
_PEM: Final = Path(__file__).parent
CERTIFICATE: Final = (_PEM / "client.pem").read_text()
KEY: Final = (_PEM / "client-key.pem").read_text()
PLUGIN: Final = """#!/bin/sh
printf '%s' "$KUBERNETES_EXEC_INFO" > "$(dirname "$0")/seen.json"
printf '{{"apiVersion": "{version}", "kind": "ExecCredential", "status": {status}}}'
"""


@dataclass(frozen=True)
class Case:
    """A kubeconfig, the files beside it, and the environment of the client."""

    name: str
    text: str
    files: dict[str, str] = field(default_factory=dict[str, str])
    env: dict[str, str] = field(default_factory=dict[str, str])

    def write(self, folder: Path) -> Path:
        """Write the files into an empty folder; return the path of the kubeconfig."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            path.chmod(0o755)
        path = folder / "config"
        path.write_text(self.text.replace(FOLDER, str(folder)))
        return path


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


CA_DATA: Final = {"certificate-authority-data": _encoded(CERTIFICATE)}
_FILES: Final = {
    "ca.crt": CERTIFICATE,
    "pki/client.crt": CERTIFICATE,
    "pki/client.key": KEY,
    "token": "from-file\n",
    "empty": "",
    "not-pem": "hello",
    "plugin": PLUGIN.format(version=V1, status='{"token": "from-plugin"}'),
    "bin/plugin": PLUGIN.format(version=V1, status='{"token": "from-plugin"}'),
    "plugin-beta": PLUGIN.format(version=V1BETA1, status='{"token": "from-plugin"}'),
    "plugin-certificate": PLUGIN.format(
        version=V1,
        status=json.dumps({"clientCertificateData": CERTIFICATE, "clientKeyData": KEY})
        .replace("\\n", "\\\\n")
        .replace("%", "%%"),
    ),
    "plugin-half": PLUGIN.format(version=V1, status='{"clientKeyData": "x"}'),
    "plugin-nothing": PLUGIN.format(version=V1, status="{}"),
    "plugin-null": PLUGIN.format(version=V1, status="null"),
    "plugin-fails": "#!/bin/sh\nexit 3\n",
    "plugin-babbles": "#!/bin/sh\necho hello\n",
}


def document(cluster: object, user: object, context: object = None, **more: object) -> str:
    """A kubeconfig of one context."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": context or {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            **more,
        }
    )


SERVER: Final = {"server": "https://api.example.org:6443"}


def cases() -> list[Case]:
    """All of them."""
    results: list[Case] = []
    for name, fields in _CLUSTERS.items():
        user = {"token": "t"}
        results.append(Case(f"cluster {name}", document({**SERVER, **fields}, user), _FILES))
    for name, fields in _USERS.items():
        results.append(Case(f"user {name}", document(SERVER, fields), _FILES))
    for name, fields in _PLUGINS.items():
        plugin = {"apiVersion": V1, "interactiveMode": "Never", "command": "./plugin", **fields}
        results.append(Case(f"exec {name}", document(SERVER, {"exec": plugin}), _FILES))
    for name, (cluster, user) in _INFORMED.items():
        plugin = {
            "apiVersion": V1,
            "interactiveMode": "Never",
            "command": "./plugin",
            "provideClusterInfo": True,
            **user,
        }
        text = document({**SERVER, **cluster}, {"exec": plugin})
        results.append(Case(f"exec informed {name}", text, _FILES))
    results += [Case(f"document {name}", text, _FILES) for name, text in _DOCUMENTS.items()]
    for i, (server, env) in enumerate(proxy_environments()):
        text = document({"server": server}, {"token": "t"})
        results.append(Case(f"environment {i} {server} {env}", text, {}, env))
    results += _combinations()
    return results


_EXTENSION: Final = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
_CLUSTERS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "null fields": dict.fromkeys(
        (
            "tls-server-name",
            "insecure-skip-tls-verify",
            "certificate-authority",
            "certificate-authority-data",
            "proxy-url",
            "disable-compression",
            "extensions",
        )
    ),
    "empty fields": {
        "tls-server-name": "",
        "insecure-skip-tls-verify": False,
        "certificate-authority": "",
        "certificate-authority-data": "",
        "proxy-url": "",
        "extensions": [],
    },
    "server null": {"server": None},
    "server empty": {"server": ""},
    "server number": {"server": 5},
    "server without scheme": {"server": "api.example.org:6443"},
    "server host alone": {"server": "api.example.org"},
    "server slash": {"server": "https://api.example.org:6443/"},
    "server path": {"server": "https://api.example.org/k8s/clusters/c-1"},
    "server path slash": {"server": "https://api.example.org/k8s/clusters/c-1/"},
    "server path query": {"server": "https://api.example.org/k8s?x=1#y"},
    "server query": {"server": "https://api.example.org?x=1"},
    "server upper case": {"server": "HTTPS://API.example.org:6443"},
    "server login": {"server": "https://me:pass%20word@api.example.org:6443"},
    "server v6": {"server": "https://[2001:db8::1]:6443"},
    "server v6 without port": {"server": "https://[2001:db8::1]"},
    "server ftp": {"server": "ftp://api.example.org"},
    "server port text": {"server": "https://api.example.org:port"},
    "ca data": CA_DATA,
    "ca data with line breaks": {
        "certificate-authority-data": "\n".join(
            CA_DATA["certificate-authority-data"][i : i + 60]
            for i in range(0, len(CA_DATA["certificate-authority-data"]), 60)
        )
    },
    "ca data not base64": {"certificate-authority-data": "?"},
    "ca data not pem": {"certificate-authority-data": _encoded("hello")},
    "ca data with comments": {
        "certificate-authority-data": _encoded(f"# Größe\n{CERTIFICATE}\n# end\n")
    },
    "ca data with a key first": {"certificate-authority-data": _encoded(KEY + CERTIFICATE)},
    "ca file relative": {"certificate-authority": "ca.crt"},
    "ca file dotted": {"certificate-authority": "./pki/../ca.crt"},
    "ca file absolute": {"certificate-authority": f"{FOLDER}/ca.crt"},
    "ca file missing": {"certificate-authority": "no-such"},
    "ca file not pem": {"certificate-authority": "not-pem"},
    "ca file empty": {"certificate-authority": "empty"},
    "ca both": {**CA_DATA, "certificate-authority": "ca.crt"},
    "ca file and data null": {
        "certificate-authority-data": None,
        "certificate-authority": "ca.crt",
    },
    "ca file and data empty": {"certificate-authority-data": "", "certificate-authority": "ca.crt"},
    "insecure": {"insecure-skip-tls-verify": True},
    "insecure text": {"insecure-skip-tls-verify": "true"},
    "insecure with ca": {**CA_DATA, "insecure-skip-tls-verify": True},
    "insecure with ca file": {"certificate-authority": "ca.crt", "insecure-skip-tls-verify": True},
    "server name": {"tls-server-name": "kubernetes"},
    "server name with ca": {**CA_DATA, "tls-server-name": "kubernetes"},
    "server name insecure": {"insecure-skip-tls-verify": True, "tls-server-name": "kubernetes"},
    "proxy http": {"proxy-url": "http://squid.example.org:3128"},
    "proxy http login": {"proxy-url": "http://me:pass@squid.example.org:3128"},
    "proxy https": {"proxy-url": "https://squid.example.org"},
    "proxy path": {"proxy-url": "http://squid.example.org:3128/path"},
    "proxy socks5": {"proxy-url": "socks5://squid.example.org:1080"},
    "proxy ftp": {"proxy-url": "ftp://squid.example.org"},
    "proxy without scheme": {"proxy-url": "squid.example.org:3128"},
    "proxy number": {"proxy-url": 3128},
    "compression off": {"disable-compression": True},
    "compression text": {"disable-compression": "yes"},
    "unknown fields": {"api-version": "v1", "extra": {"a": 1}},
    "extensions twice": {"extensions": [_EXTENSION, _EXTENSION]},
    "extension null": {"extensions": [{"name": "x", "extension": None}]},
    "extensions map": {"extensions": {"name": "x"}},
}
_CERT: Final = {"client-certificate": "pki/client.crt", "client-key": "pki/client.key"}
_CERT_DATA: Final = {
    "client-certificate-data": _encoded(CERTIFICATE),
    "client-key-data": _encoded(KEY),
}
_OIDC: Final = {"idp-issuer-url": "https://issuer.example.org", "client-id": "kubernetes"}
_USERS: Final[dict[str, dict[str, Any] | None]] = {
    "empty": {},
    "null": None,
    "null fields": dict.fromkeys(
        (
            "token",
            "tokenFile",
            "username",
            "password",
            "client-certificate",
            "client-certificate-data",
            "client-key",
            "client-key-data",
            "as",
            "as-uid",
            "as-groups",
            "as-user-extra",
            "auth-provider",
            "exec",
        )
    ),
    "token": {"token": "t"},
    "token number": {"token": 12345},
    "token null beside file": {"token": None, "tokenFile": "token"},
    "token empty beside file": {"token": "", "tokenFile": "token"},
    "token file": {"tokenFile": "token"},
    "token file dotted": {"tokenFile": "./token"},
    "token file absolute": {"tokenFile": f"{FOLDER}/token"},
    "token file missing": {"tokenFile": "no-such"},
    "token file empty": {"tokenFile": "empty"},
    "token and file": {"token": "t", "tokenFile": "token"},
    "token and missing file": {"token": "t", "tokenFile": "no-such"},
    "token and empty file": {"token": "t", "tokenFile": "empty"},
    "token and basic": {"token": "t", "username": "me", "password": "p"},
    "token file and basic": {"tokenFile": "token", "username": "me", "password": "p"},
    "basic": {"username": "me", "password": "pä:ß"},
    "basic without password": {"username": "me"},
    "basic without name": {"password": "p"},
    "basic number": {"username": "me", "password": 1},
    "certificate": _CERT,
    "certificate data": _CERT_DATA,
    "certificate mixed": {
        "client-certificate": "pki/client.crt",
        "client-key-data": _CERT_DATA["client-key-data"],
    },
    "certificate both": {**_CERT, **_CERT_DATA},
    "certificate twice": {**_CERT_DATA, "client-certificate": "pki/client.crt"},
    "certificate and key twice": {**_CERT_DATA, "client-key": "pki/client.key"},
    "certificate without key": {"client-certificate": "pki/client.crt"},
    "key without certificate": {"client-key": "pki/client.key"},
    "certificate missing": {**_CERT, "client-certificate": "no-such"},
    "key missing": {**_CERT, "client-key": "no-such"},
    "certificate not pem": {**_CERT, "client-certificate": "not-pem"},
    "key not pem": {**_CERT, "client-key": "not-pem"},
    "certificate null data": {
        **_CERT,
        "client-certificate-data": None,
        "client-key-data": "",
    },
    "certificate and token": {**_CERT, "token": "t"},
    "certificate and basic": {**_CERT, "username": "me", "password": "p"},
    "as": {"token": "t", "as": "jane"},
    "as without credentials": {"as": "jane"},
    "as all": {
        "token": "t",
        "as": "jane",
        "as-uid": "u-1",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"scopes": ["a", "b"], "acme.org/Team %": ["x"]},
    },
    "as groups alone": {"token": "t", "as-groups": ["dev"]},
    "as uid alone": {"token": "t", "as-uid": "u-1"},
    "as extra alone": {"token": "t", "as-user-extra": {"a": ["b"]}},
    "as empty with empty lists": {"token": "t", "as": "", "as-groups": [], "as-user-extra": {}},
    "as groups text": {"token": "t", "as": "jane", "as-groups": "dev"},
    "as groups null entry": {"token": "t", "as": "jane", "as-groups": [None, "x"]},
    "as extra text": {"token": "t", "as": "jane", "as-user-extra": {"a": "b"}},
    "oidc": {"auth-provider": {"name": "oidc", "config": {**_OIDC, "id-token": TOKEN}}},
    "oidc without issuer": {
        "auth-provider": {"name": "oidc", "config": {"client-id": "x", "id-token": TOKEN}}
    },
    "oidc without client": {
        "auth-provider": {"name": "oidc", "config": {"idp-issuer-url": "x", "id-token": TOKEN}}
    },
    "oidc without token": {
        "auth-provider": {"name": "oidc", "config": {**_OIDC, "client-id": "another"}}
    },
    "oidc without config": {"auth-provider": {"name": "oidc"}},
    "oidc null config": {"auth-provider": {"name": "oidc", "config": None}},
    "oidc and token": {
        "token": "t",
        "auth-provider": {"name": "oidc", "config": {**_OIDC, "id-token": TOKEN}},
    },
    "provider gcp": {"auth-provider": {"name": "gcp", "config": {"access-token": "x"}}},
    "provider azure": {"auth-provider": {"name": "azure", "config": {"access-token": "x"}}},
    "provider unknown": {"auth-provider": {"name": "x"}},
    "provider text": {"auth-provider": "oidc"},
    "exec and provider": {
        "exec": {"apiVersion": V1, "interactiveMode": "Never", "command": "./plugin"},
        "auth-provider": {"name": "oidc", "config": {**_OIDC, "id-token": TOKEN}},
    },
    "exec and token": {
        "token": "t",
        "exec": {"apiVersion": V1, "interactiveMode": "Never", "command": "./plugin"},
    },
    "exec and certificate": {
        **_CERT,
        "exec": {"apiVersion": V1, "interactiveMode": "Never", "command": "./plugin"},
    },
    "exec broken and token": {
        "token": "t",
        "exec": {"apiVersion": V1, "interactiveMode": "Never", "command": "./no-such"},
    },
    "unknown fields": {"token": "t", "colour": "red", "extensions": [{"name": "x"}]},
}
_PLUGINS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "empty": {"command": "", "apiVersion": ""},
    "in a folder": {"command": "bin/plugin"},
    "absolute": {"command": f"{FOLDER}/plugin"},
    "by name": {"command": "sh", "args": [f"{FOLDER}/plugin"]},
    "by name beside": {"command": "plugin"},
    "missing": {"command": "./no-such", "installHint": "install it"},
    "null lists": {"args": None, "env": None, "installHint": None, "provideClusterInfo": None},
    "empty lists": {"args": [], "env": [], "provideClusterInfo": False},
    "env": {"env": [{"name": "A", "value": "b"}, {"name": "A", "value": "c"}]},
    "env null value": {"env": [{"name": "A", "value": None}]},
    "env without value": {"env": [{"name": "A"}]},
    "env number": {"env": [{"name": "A", "value": 1}]},
    "env without name": {"env": [{"value": "b"}]},
    "env map": {"env": {"A": "b"}},
    "args number": {"args": [1]},
    "args text": {"args": "a"},
    "beta": {"apiVersion": V1BETA1, "command": "./plugin-beta"},
    "beta without mode": {
        "apiVersion": V1BETA1,
        "command": "./plugin-beta",
        "interactiveMode": None,
    },
    "another version": {"command": "./plugin-beta"},
    "alpha": {"apiVersion": "client.authentication.k8s.io/v1alpha1"},
    "version unknown": {"apiVersion": "v1"},
    "version null": {"apiVersion": None},
    "without mode": {"interactiveMode": None},
    "mode empty": {"interactiveMode": ""},
    "mode if available": {"interactiveMode": "IfAvailable"},
    "mode always": {"interactiveMode": "Always"},
    "mode unknown": {"interactiveMode": "Sometimes"},
    "certificate": {"command": "./plugin-certificate"},
    "half a certificate": {"command": "./plugin-half"},
    "nothing": {"command": "./plugin-nothing"},
    "null status": {"command": "./plugin-null"},
    "fails": {"command": "./plugin-fails"},
    "babbles": {"command": "./plugin-babbles"},
    "unknown fields": {"colour": "red"},
}
_INFORMED: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "plain": ({}, {}),
    "config": ({"extensions": [_EXTENSION]}, {}),
    "config null": ({"extensions": [{**_EXTENSION, "extension": None}]}, {}),
    "config text": ({"extensions": [{**_EXTENSION, "extension": "text"}]}, {}),
    "config list": ({"extensions": [{**_EXTENSION, "extension": [1, {"a": None}]}]}, {}),
    "another extension": ({"extensions": [{"name": "x", "extension": {"a": 1}}]}, {}),
    "not wanted": ({"extensions": [_EXTENSION]}, {"provideClusterInfo": False}),
    "beta": ({"extensions": [_EXTENSION]}, {"apiVersion": V1BETA1, "command": "./plugin-beta"}),
    "ca data": (CA_DATA, {}),
    "ca file": ({"certificate-authority": "ca.crt"}, {}),
    "insecure": ({"insecure-skip-tls-verify": True}, {}),
    "all": (
        {
            **CA_DATA,
            "server": "https://api.example.org/k8s/",
            "tls-server-name": "kubernetes",
            "proxy-url": "http://squid.example.org:3128",
            "disable-compression": True,
            "extensions": [_EXTENSION],
        },
        {},
    ),
}
_DOCUMENTS: Final = {
    "yaml": (
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nusers:\n- name: u\n  user:\n"
        "    token: 2024-01-01\nclusters:\n- name: c\n  cluster:\n"
        "    server: https://api.example.org\ncontexts:\n- name: c\n"
        "  context: {cluster: c, user: u}\n"
    ),
    "yaml token yes": document(SERVER, {"token": "@"}).replace('"@"', "yes"),
    "yaml token twice": document(SERVER, {"token": "@"}).replace('"@"', '"a", "token": "b"'),
    "without header": document(SERVER, {"token": "t"}, apiVersion=None, kind=None),
    "another kind": document(SERVER, {"token": "t"}, kind="Pod"),
    "another version": document(SERVER, {"token": "t"}, apiVersion="v2"),
    "without context": document(SERVER, {"token": "t"}, **{"current-context": ""}),
    "unknown context": document(SERVER, {"token": "t"}, **{"current-context": "x"}),
    "null context": document(SERVER, {"token": "t"}, **{"current-context": None}),
    "context without user": document(SERVER, {"token": "t"}, {"cluster": "c"}),
    "context with null user": document(SERVER, {"token": "t"}, {"cluster": "c", "user": None}),
    "context with unknown user": document(SERVER, {"token": "t"}, {"cluster": "c", "user": "x"}),
    "context without cluster": document(SERVER, {"token": "t"}, {"user": "u"}),
    "context with unknown cluster": document(SERVER, {"token": "t"}, {"cluster": "x", "user": "u"}),
    "context with namespace": document(
        SERVER, {"token": "t"}, {"cluster": "c", "user": "u", "namespace": "Not A Name"}
    ),
    "clusters null": document(SERVER, {"token": "t"}, clusters=None),
    "users null": document(SERVER, {"token": "t"}, users=None),
    "cluster null": document(None, {"token": "t"}),
    "cluster text": document("text", {"token": "t"}),
    "user text": document(SERVER, "text"),
    "users twice": document(
        SERVER,
        {},
        users=[{"name": "u", "user": {"token": "a"}}, {"name": "u", "user": {"token": "b"}}],
    ),
    "clusters twice": document(
        SERVER,
        {"token": "t"},
        clusters=[{"name": "c", "cluster": SERVER}, {"name": "c", "cluster": SERVER}],
    ),
    "contexts twice": document(
        SERVER,
        {"token": "t"},
        contexts=[{"name": "c", "context": {"cluster": "c", "user": "u"}}] * 2,
    ),
    "name number": document(SERVER, {"token": "t"}, contexts=[{"name": 5}]),
    "unknown fields": document(SERVER, {"token": "t"}, colour="red", preferences={"colors": True}),
    "preferences null": document(SERVER, {"token": "t"}, preferences=None),
}


_ROLLS: Final[list[list[dict[str, Any]]]] = [
    [{}, CA_DATA, {"certificate-authority": "ca.crt"}],
    [{}, {"insecure-skip-tls-verify": True}],
    [{}, {"proxy-url": "http://squid.example.org:3128"}],
    [{}, {"tls-server-name": "kubernetes"}],
]
_ANY_USER: Final[list[dict[str, Any]]] = [
    {},
    {"token": "t"},
    {"tokenFile": "token"},
    {"username": "me", "password": "p"},
    _CERT,
    {"exec": {"apiVersion": V1, "interactiveMode": "Never", "command": "./plugin"}},
]


def _combinations() -> list[Case]:
    """Every pair of credentials, and every combination of the ways to an API server."""
    clusters: list[dict[str, Any]] = [SERVER]
    for choices in _ROLLS:
        clusters = [{**cluster, **choice} for cluster in clusters for choice in choices]
    results = [
        Case(f"combined cluster {i}", document(cluster, {"token": "t"}), _FILES)
        for i, cluster in enumerate(clusters)
    ]
    users = [{**a, **b} for a in _ANY_USER for b in _ANY_USER]
    return results + [
        Case(f"combined user {i}", document(SERVER, user), _FILES) for i, user in enumerate(users)
    ]
