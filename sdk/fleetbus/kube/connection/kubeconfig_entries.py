"""The cluster and the user of a context, read and checked as client-go does.

A field that client-go refuses, and one that we cannot honour, is an error that names it: a cluster
must never be reached in another way than its kubeconfig says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from fleetbus.kube.connection.typed_fields import TypedFields

_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"
_BETA: Final = "client.authentication.k8s.io/v1beta1"
EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", _BETA)
_MODES: Final = ("Never", "IfAvailable", "Always")
_PROXIES: Final = ("http", "https")


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """An API server: its address, the way there, and its trust."""

    server: str
    tls_server_name: str
    insecure: bool
    ca_file: str
    ca_data: bytes = field(repr=False)
    proxy_url: str
    disable_compression: bool
    exec_config: object
    """For credential plugins that want information on the cluster."""

    @property
    def has_ca(self) -> bool:
        """Whether the certificate is checked against an authority of its own."""
        return bool(self.ca_data or self.ca_file)


@dataclass(frozen=True, slots=True)
class ExecEntry:
    """A credential plugin."""

    command: str
    args: list[str]
    env: dict[str, str] = field(repr=False)
    api_version: str
    install_hint: str
    provide_cluster_info: bool
    mode: str


@dataclass(frozen=True, slots=True)
class Impersonation:
    """The user to act as; nobody if `user` is empty."""

    user: str
    uid: str
    groups: list[str]
    extra: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class UserEntry:
    """The credentials of a user, or where they are."""

    cert_file: str
    cert_data: bytes = field(repr=False)
    key_file: str
    key_data: bytes = field(repr=False)
    token: str = field(repr=False)
    token_file: str
    username: str
    password: str = field(repr=False)
    acting: Impersonation
    oidc: dict[str, str] | None = field(repr=False)
    """The settings of the auth-provider oidc."""
    exec: ExecEntry | None

    @property
    def has_basic(self) -> bool:
        """Whether there is a user name; a password alone is not sent."""
        return bool(self.username)

    @property
    def has_certificate(self) -> bool:
        """Whether there is a client certificate."""
        return bool(self.cert_data or self.cert_file)


def read_cluster(fields: TypedFields) -> ClusterEntry:
    """The cluster section of a kubeconfig.

    Raises:
        ConfigError: a field is malformed, contradicts another, or cannot be honoured.
    """
    entry = ClusterEntry(
        server=fields.text("server"),
        tls_server_name=fields.text("tls-server-name"),
        insecure=fields.flag("insecure-skip-tls-verify"),
        ca_file=fields.text("certificate-authority"),
        ca_data=fields.data("certificate-authority-data"),
        proxy_url=fields.text("proxy-url"),
        disable_compression=fields.flag("disable-compression"),
        exec_config=_exec_config(fields),
    )
    if entry.ca_file and entry.ca_data:
        raise fields.error("certificate-authority", "and 'certificate-authority-data' are both set")
    if entry.has_ca and entry.insecure:
        raise fields.error(
            "insecure-skip-tls-verify", "contradicts the certificate authority beside it"
        )
    if entry.proxy_url:
        _check_proxy(entry.proxy_url, fields)
    return entry


def _check_proxy(url: str, fields: TypedFields) -> None:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in _PROXIES:
        raise fields.error(
            "proxy-url", "is not the URL of an http or https proxy; others are not supported"
        )


def _exec_config(fields: TypedFields) -> object:
    extensions: dict[str, object] = {}
    for extension in fields.maps("extensions"):
        name = extension.text("name")
        if name in extensions:
            raise fields.error("extensions", f"has two entries named {name!r}")
        extensions[name] = extension.raw("extension")
    return extensions.get(_EXEC_EXTENSION)


def read_user(fields: TypedFields) -> UserEntry:
    """The user section of a kubeconfig.

    Raises:
        ConfigError: a field is malformed, contradicts another, or cannot be honoured.
    """
    entry = UserEntry(
        cert_file=fields.text("client-certificate"),
        cert_data=fields.data("client-certificate-data"),
        key_file=fields.text("client-key"),
        key_data=fields.data("client-key-data"),
        token=fields.text("token"),
        token_file=fields.text("tokenFile"),
        username=fields.text("username"),
        password=fields.text("password"),
        acting=_impersonation(fields),
        oidc=_oidc(fields),
        exec=_exec(fields),
    )
    _check_certificate(entry, fields)
    if (entry.username or entry.password) and (entry.token or entry.token_file):
        raise fields.error("username", "or 'password' and a token are set; only one is allowed")
    if entry.exec is not None and entry.oidc is not None:
        raise fields.error("auth-provider", "and 'exec' are both set; only one is allowed")
    return entry


def _check_certificate(entry: UserEntry, fields: TypedFields) -> None:
    if not entry.has_certificate:
        return
    if entry.cert_file and entry.cert_data:
        raise fields.error("client-certificate", "and 'client-certificate-data' are both set")
    if entry.key_file and entry.key_data:
        raise fields.error("client-key", "and 'client-key-data' are both set")
    if not entry.key_file and not entry.key_data:
        raise fields.error("client-key", "is missing beside the client certificate")


def _impersonation(fields: TypedFields) -> Impersonation:
    extra = fields.map("as-user-extra")
    acting = Impersonation(
        user=fields.text("as"),
        uid=fields.text("as-uid"),
        groups=fields.texts("as-groups"),
        extra={name: extra.texts(name) for name in extra.names()} if extra else {},
    )
    if not acting.user and (acting.uid or acting.groups or acting.extra):
        raise fields.error("as", "is missing beside 'as-uid', 'as-groups' or 'as-user-extra'")
    return acting


def _oidc(fields: TypedFields) -> dict[str, str] | None:
    provider = fields.map("auth-provider")
    if provider is None:
        return None
    if (name := provider.text("name")) != "oidc":
        raise fields.error(
            "auth-provider", f"{name!r} is not supported, as in kubectl; use a plugin with 'exec'"
        )
    settings = provider.text_map("config")
    for needed in ("idp-issuer-url", "client-id"):
        if not settings.get(needed):
            raise provider.error("config", f"has no {needed!r}")
    return settings


def _exec(fields: TypedFields) -> ExecEntry | None:
    plugin = fields.map("exec")
    if plugin is None:
        return None
    version = plugin.text("apiVersion")
    mode = plugin.text("interactiveMode") or ("IfAvailable" if version == _BETA else "")
    entry = ExecEntry(
        command=plugin.text("command"),
        args=plugin.texts("args"),
        env={each.text("name"): each.text("value") for each in plugin.maps("env")},
        api_version=version,
        install_hint=plugin.text("installHint"),
        provide_cluster_info=plugin.flag("provideClusterInfo"),
        mode=mode,
    )
    if not entry.command:
        raise plugin.error("command", "is missing")
    if version not in EXEC_VERSIONS:
        raise plugin.error("apiVersion", f"is not one of {', '.join(EXEC_VERSIONS)}")
    if "" in entry.env:
        raise plugin.error("env", "has an entry without a name")
    if mode not in _MODES:
        raise plugin.error("interactiveMode", f"is not one of {', '.join(_MODES)}")
    return entry
