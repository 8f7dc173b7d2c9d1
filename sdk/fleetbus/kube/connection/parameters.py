"""The parameters of a connection, made of access data: host, proxy, TLS, headers.

They are those that client-go makes of the same kubeconfig, with one difference: credentials are
sent over plain http too, which only an explicit field allows (rule S7).
"""

from __future__ import annotations

import base64
import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from multidict import CIMultiDict

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.environment_proxy import environment_proxy
from fleetbus.kube.connection.exec_plugin import Plugin, PluginCredentials
from fleetbus.kube.connection.kubeconfig_entries import ClusterEntry, Impersonation, UserEntry
from fleetbus.kube.connection.tls import client_context, use_certificate
from fleetbus.process.file_errors import file_problem

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POD: Final = "the pod's service account, as no kubeconfig is given"
_HEADER_NAME: Final = "!#$&'*+-.^_`|~"


@dataclass(slots=True)
class Connection:
    """The parameters for aiohttp to connect to one API server."""

    host: str
    ssl: ssl.SSLContext | None
    proxy: str | None
    server_hostname: str | None
    headers: CIMultiDict[str]
    expires: float | None = None
    """When the credentials of a plugin expire, in seconds since 1970."""

    @property
    def is_expired(self) -> bool:
        """Whether the credentials must be made anew."""
        return self.expires is not None and time.time() > self.expires

    def headers_as(self, user: str) -> CIMultiDict[str]:
        """The headers of a request as a user; "" for the user of the access data.

        Whoever the kubeconfig impersonates, with groups and all, is then not impersonated.
        """
        if not user:
            return self.headers.copy()
        headers = CIMultiDict(
            (name, value)
            for name, value in self.headers.items()
            if not name.lower().startswith("impersonate-")
        )
        headers["Impersonate-User"] = user
        return headers


def pod_connection() -> Connection:
    """The connection of the pod that we run in, by its service account.

    Raises:
        ConfigError: this is no pod, or a file of the account cannot be read.
    """
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{suffix}") for suffix in ("HOST", "PORT"))
    if not host or not port:
        raise ConfigError(f"{_POD}: this is no pod of Kubernetes")
    address = f"[{host}]" if ":" in host else host
    url = f"https://{address}:{port}"
    token = _read(SERVICE_ACCOUNT / "token", _POD).decode(errors="replace").strip()
    try:
        context = client_context(_read(SERVICE_ACCOUNT / "ca.crt", _POD), insecure=False)
    except ValueError as e:
        raise ConfigError(f"{_POD}: {SERVICE_ACCOUNT / 'ca.crt'}: {e}") from e
    headers = CIMultiDict({"Authorization": f"Bearer {token}"})
    return Connection(url, context, environment_proxy(url) or None, None, headers)


class Access:
    """One way to an API server: its address, the credentials, and where they are read.

    Args:
        cluster: the address and the trust, checked.
        user: the credentials, or where they are, checked.
        source: the origin of both, for messages.
        folder: the folder for relative paths.
        insecure: leave the certificate of the server unverified.
    """

    def __init__(
        self, cluster: ClusterEntry, user: UserEntry, *, source: str, folder: str, insecure: bool
    ) -> None:
        self._source = source
        self._folder = folder
        self._insecure = insecure or cluster.insecure
        self._cluster = cluster
        self._user = user
        self._host, self._login = _split_server(cluster.server)

    async def connection(self) -> Connection:
        """Read files and run a credential plugin, as the access needs.

        Raises:
            ConfigError: a file cannot be read or used, or the plugin failed.
        """
        cluster = self._cluster
        ca = cluster.ca_data or self._file(cluster.ca_file)
        plugin = await self._run_plugin(ca)
        is_tls = self._host.startswith("https:")
        return Connection(
            host=self._host,
            ssl=self._ssl_context(ca, plugin) if is_tls else None,
            proxy=cluster.proxy_url or environment_proxy(self._host) or None,
            server_hostname=cluster.tls_server_name or None,
            headers=await self._headers(plugin),
            expires=plugin.expires if plugin else None,
        )

    async def _run_plugin(self, ca: bytes) -> PluginCredentials | None:
        user = self._user
        if user.exec is None or user.token or user.token_file or user.has_basic:
            return None
        if user.has_certificate:
            return None
        where = f"{self._source}: exec"
        return await Plugin(user.exec, self._cluster, ca, self._folder, where).run()

    async def _headers(self, plugin: PluginCredentials | None) -> CIMultiDict[str]:
        headers: CIMultiDict[str] = CIMultiDict()
        if authorization := await self._authorization(plugin):
            headers["Authorization"] = authorization
        _impersonate(headers, self._user.acting)
        if self._cluster.disable_compression:
            headers["Accept-Encoding"] = "identity"
        for name, value in headers.items():
            if "\n" in value or "\r" in value or "\0" in value:
                raise ConfigError(f"{self._source}: the header {name} would have a line break")
        return headers

    async def _authorization(self, plugin: PluginCredentials | None) -> str:
        if self._login:
            return self._login
        if token := self._token():
            return f"Bearer {token}"
        if self._user.has_basic:
            return _basic(self._user.username, self._user.password)
        if plugin is not None and plugin.token:
            return f"Bearer {plugin.token}"
        if self._user.oidc is not None:
            # aiohttp, which a command that cannot start should not wait for
            from fleetbus.kube.connection.oidc import id_token  # noqa: PLC0415 -- see above

            where = f"{self._source}: auth-provider"
            return f"Bearer {await id_token(self._user.oidc, self._folder, where)}"
        return ""

    def _token(self) -> str:
        user = self._user
        if not user.token_file:
            return user.token
        try:
            # The file counts, as the token beside it may be old.
            token = self._file(user.token_file).decode(errors="replace").strip()
        except ConfigError:
            if user.token:
                return user.token
            raise
        if not token and not user.token:
            raise ConfigError(f"{self._source}: 'tokenFile' {user.token_file} is empty")
        return token or user.token

    def _ssl_context(self, ca: bytes, plugin: PluginCredentials | None) -> ssl.SSLContext:
        try:
            context = client_context(ca, insecure=self._insecure)
        except ValueError as e:
            raise ConfigError(f"{self._source}: 'certificate-authority': {e}") from e
        user = self._user
        certificate = user.cert_data or self._file(user.cert_file)
        key = (user.key_data or self._file(user.key_file)) if certificate else b""
        if plugin is not None and plugin.certificate:
            certificate, key = plugin.certificate.encode(), plugin.key.encode()
        if certificate:
            try:
                use_certificate(context, certificate, key)
            except ValueError as e:
                raise ConfigError(f"{self._source}: 'client-certificate': {e}") from e
        return context

    def _file(self, name: str) -> bytes:
        return _read(Path(self._folder, name), self._source) if name else b""


def _split_server(server: str) -> tuple[str, str]:
    """The address without query, fragment and login, and the login as a header."""
    parsed = urlsplit(server)
    login = parsed.username is not None
    address = parsed._replace(
        scheme=parsed.scheme.lower(),
        netloc=parsed.netloc.rpartition("@")[2],
        path=parsed.path.rstrip("/"),
        query="",
        fragment="",
    )
    basic = _basic(unquote(parsed.username or ""), unquote(parsed.password or "")) if login else ""
    return address.geturl(), basic


def _basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _impersonate(headers: CIMultiDict[str], acting: Impersonation) -> None:
    if not acting.user:
        return
    headers["Impersonate-User"] = acting.user
    if acting.uid:
        headers["Impersonate-Uid"] = acting.uid
    for group in acting.groups:
        headers.add("Impersonate-Group", group)
    for name, values in acting.extra.items():
        for value in values:
            headers.add(f"Impersonate-Extra-{quote(name, safe=_HEADER_NAME)}", value)


def _read(path: Path, source: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        raise ConfigError(f"{source}: cannot read {path}: {file_problem(e)}") from e
