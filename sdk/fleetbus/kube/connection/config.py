"""The access data of a cluster: a kubeconfig and a context, their origin, and what is allowed."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.address import AddressPolicy
from fleetbus.kube.connection.kubeconfig_document import Document
from fleetbus.kube.connection.kubeconfig_entries import (
    ClusterEntry,
    UserEntry,
    read_cluster,
    read_user,
)
from fleetbus.kube.connection.parameters import Access, Connection, pod_connection
from fleetbus.kube.connection.typed_fields import TypedFields
from fleetbus.process.file_errors import file_problem
from fleetbus.process.loopback import allows_loopback
from fleetbus.process.redact import without_secrets
from fleetbus.process.waiting import wait_until_usable

if TYPE_CHECKING:
    from fleetbus.process.health import Health

MAX_UPLOAD: Final = 256 * 1024
"""Bytes of an uploaded kubeconfig (rule S7)."""
_REFUSED_OF_USERS: Final = frozenset(
    {"exec", "auth-provider", "tokenFile", "client-certificate", "client-key"}
)
_REFUSED_OF_CLUSTERS: Final = frozenset({"certificate-authority", "insecure-skip-tls-verify"})
_ABSENT: Final = (None, "", False)


Renew: TypeAlias = Callable[[], Awaitable["KubeConfig | None"]]
"""Reads access data again; returns None if that is not possible now."""


@dataclass(frozen=True, slots=True)
class KubeConfig:
    """One cluster's access data: a kubeconfig document and the context to use.

    Equal values mean an equal connection, so that an unchanged file causes no reconnect.
    """

    document: str
    """The kubeconfig as YAML or JSON text; it may contain secrets and is never logged."""
    context: str = ""
    source: str = "kubeconfig"
    """Its origin, for messages."""
    insecure: bool = False
    """The certificate is not verified."""
    http: bool = False
    """Plain http is allowed by an explicit field of the Cluster or the entry (rule S7)."""
    own: bool = False
    """A file of the user of this process: it may lead to this machine and have YAML aliases."""
    renew: Renew | None = field(default=None, compare=False)
    """Reads it again from its origin after a 401 (rule W19); None for a file."""
    readings: list[_Reading] = field(
        default_factory=list["_Reading"], init=False, repr=False, compare=False
    )
    """At most one, cached: it is needed at each change of the fleet."""

    @property
    def policy(self) -> AddressPolicy:
        """Which addresses the API server and a proxy may have."""
        return AddressPolicy(http=self.http, loopback=self.own or allows_loopback())

    def __repr__(self) -> str:
        return f"KubeConfig(source={self.source!r}, context={self.context!r})"


@dataclass(frozen=True, slots=True)
class _Reading:
    """The address in a document, and its entries or the problem of one."""

    server: str
    entries: tuple[ClusterEntry, UserEntry] | None
    problem: str


def read_kube_config(path: str | os.PathLike[str], context: str = "") -> KubeConfig:
    """Read and check a kubeconfig file of the user who runs this process.

    Raises:
        ConfigError: the file cannot be read, is not a kubeconfig, or lacks the context.
    """
    config = load_kube_config(path, context)
    names = contexts(config)
    if context and context not in names:
        raise ConfigError(f"{path}: context {context!r} is not one of {', '.join(names) or 'none'}")
    return config


async def wait_for_kube_config(
    path: str | os.PathLike[str], context: str = "", *, name: str, health: Health
) -> KubeConfig:
    """Read a kubeconfig like `read_kube_config`, and try again until it can be used.

    A mounted Secret may come late, or be mended; the service is not ready meanwhile and says why.

    Args:
        path: the file.
        context: the context in it; empty means its current one.
        name: of the readiness check.
        health: of the process.
    """

    async def attempt() -> KubeConfig:
        return read_kube_config(path, context)

    return await wait_until_usable(name, attempt, health=health, failures=ConfigError)


def load_kube_config(path: str | os.PathLike[str], context: str = "") -> KubeConfig:
    """Read a kubeconfig file of the user who runs this process, without parsing it.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        text = expand_home(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name, or not UTF-8
        raise ConfigError(f"{path}: cannot read the kubeconfig: {file_problem(e)}") from e
    return KubeConfig(text, context, str(path), http=True, own=True)


def signature_of(config: KubeConfig | None) -> tuple[int, ...]:
    """A value that changes with the file of a kubeconfig; empty if it is not from our file."""
    if config is None or not config.own:
        return ()
    try:
        stat = expand_home(config.source).stat()
    except (OSError, ValueError, ConfigError):
        return ()
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def read_again(config: KubeConfig) -> KubeConfig:
    """Read the access data from their file again (rule W19); the old ones if it is unusable."""
    if not signature_of(config):
        return config
    try:
        renewed = load_kube_config(config.source, config.context)
        server_of(renewed)
    except ConfigError:  # it may be half-written
        return config
    return replace(config, document=renewed.document)


def expand_home(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path with a leading `~` replaced.

    Raises:
        ConfigError: that user has no home directory.
    """
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as e:
        raise ConfigError(f"{path}: {e}") from e


def contexts(config: KubeConfig) -> list[str]:
    """The names of the contexts in a kubeconfig, in order.

    Raises:
        ConfigError: the document is not a kubeconfig.
    """
    return [str(entry["name"]) for entry in _document(config).entries("contexts")]


def by_context(config: KubeConfig) -> dict[str, KubeConfig]:
    """Each context of a document with only its own part of it.

    So an added or removed context, or another current one, does not change this one.

    Raises:
        ConfigError: the document is not a kubeconfig.
    """
    return _by_context(config, _document(config))


def _by_context(config: KubeConfig, document: Document) -> dict[str, KubeConfig]:
    return {
        name: replace(config, document=content, context=name)
        for name, content in document.parts().items()
    }


def current_context(config: KubeConfig) -> str:
    """The context to use: the chosen one, or the document's current one."""
    return config.context or _document(config).current_context


def server_of(config: KubeConfig) -> str:
    """The API server's address; empty if the document has none.

    It may be shown: a user and password in it are left out.

    Raises:
        ConfigError: the document lacks something that its context names.
    """
    return without_secrets(_reading(config).server)


def cluster_fields(config: KubeConfig) -> dict[str, Any]:
    """The cluster section of the context to use: address and trust, no credentials.

    Raises:
        ConfigError: the document lacks something that its context names.
    """
    return _document(config).cluster_of(config.context)


def _reading(config: KubeConfig) -> _Reading:
    if not config.readings:
        document = _document(config)
        fields = document.cluster_of(config.context)
        server = fields.get("server")
        entries, problem = None, ""
        try:
            entries = _read_entries(document, config.context)
        except ConfigError as e:
            problem = str(e)
        config.readings.append(
            _Reading(server if isinstance(server, str) else "", entries, problem)
        )
    return config.readings[0]


def _read_entries(document: Document, context: str) -> tuple[ClusterEntry, UserEntry]:
    name = context or document.current_context
    where = f"{document.source}: {{}} of context {name!r}"
    cluster = TypedFields(document.cluster_of(context), where.format("cluster"))
    user = TypedFields(document.user_of(context), where.format("user"))
    return read_cluster(cluster), read_user(user)


def is_same_server(config: KubeConfig, other: KubeConfig) -> bool:
    """Whether both lead to the same API server with the same trust; credentials may differ."""
    if (config.insecure, config.http, config.own) != (other.insecure, other.http, other.own):
        return False
    try:
        first, second = (_document(each).cluster_of(each.context) for each in (config, other))
    except ConfigError:
        return False
    return first == second


def user_fields(config: KubeConfig) -> dict[str, Any]:
    """The user section of the context to use: its credentials, or where they are.

    Raises:
        ConfigError: the document lacks something that its context names.
    """
    return _document(config).user_of(config.context)


def check_access(config: KubeConfig) -> None:
    """Check all that can be checked without reading files or connecting (rule S7).

    Raises:
        ConfigError: see `access_entries`.
    """
    access_entries(config)


def access_entries(config: KubeConfig) -> tuple[ClusterEntry, UserEntry]:
    """The cluster and the user of the context to use.

    Raises:
        ConfigError: a field of them is malformed or cannot be honoured, an address is not allowed
            as it is written, or the document lacks something that its context names.
    """
    reading = _reading(config)
    if reading.entries is None:
        raise ConfigError(reading.problem)
    cluster = reading.entries[0]
    if not cluster.server:
        raise ConfigError(f"{config.source}: context {current_context(config)!r} has no server")
    policy = config.policy
    if refused := policy.refusal(cluster.server):
        raise ConfigError(f"{config.source}: server: {refused}")
    if cluster.proxy_url and (refused := policy.proxy_refusal(cluster.proxy_url)):
        raise ConfigError(f"{config.source}: proxy-url: {refused}")
    return reading.entries


def read_upload(text: str, source: str) -> KubeConfig:
    """The current context of an uploaded kubeconfig, without the rest of it.

    Its addresses are not checked yet: that needs the fields of the Cluster; see `check_access`.

    Raises:
        ConfigError: it must not be used, or is not a kubeconfig.
    """
    config = KubeConfig(text, source=source)
    _check_size(config)
    document = _document(config)
    _check_upload(document, "")
    return _by_context(config, document)[document.current_context]


def upload_refusal(config: KubeConfig) -> str:
    """Why an uploaded kubeconfig must not be used; empty if it may (rule S7).

    Plugins would run code and file names read files in this process, and TLS may be left unverified
    only by the explicit field of the Cluster.
    """
    try:
        _check_size(config)
        _check_upload(_document(config), config.context)
        check_access(config)
    except ConfigError as e:
        return str(e)
    return ""


def _check_size(config: KubeConfig) -> None:
    if len(config.document.encode(errors="surrogatepass")) > MAX_UPLOAD:
        raise ConfigError(f"{config.source}: larger than {MAX_UPLOAD // 1024} KiB")


def _check_upload(document: Document, context: str) -> None:
    # Entries that no context names are checked too: another context may become current.
    for entry in document.entries("users"):
        read_user(_allowed(document.source, "user", entry, _REFUSED_OF_USERS))
    for entry in document.entries("clusters"):
        read_cluster(_allowed(document.source, "cluster", entry, _REFUSED_OF_CLUSTERS))
    document.cluster_of(context)


def _allowed(source: str, kind: str, entry: dict[str, Any], refused: frozenset[str]) -> TypedFields:
    where = f"{source}: {kind} {entry['name']!r}"
    content: object = entry.get(kind) or {}
    if not isinstance(content, dict):
        raise ConfigError(f"{where} is not a map")
    fields = cast("dict[str, Any]", content)
    for name in sorted(refused & fields.keys()):
        if fields[name] not in _ABSENT:
            raise ConfigError(f"{where}: {name!r} is not allowed")
    return TypedFields(fields, where)


async def connect(config: KubeConfig | None) -> Connection:
    """Load credentials; None means the service account of the pod we run in.

    Raises:
        ConfigError: the document is incomplete, or a credential plugin failed.
    """
    if config is None:
        return pod_connection()
    cluster, user = access_entries(config)  # checked before a credential plugin runs
    folder = _folder_of(config)
    access = Access(cluster, user, source=config.source, folder=folder, insecure=config.insecure)
    return await access.connection()


def _folder_of(config: KubeConfig) -> str:
    """The folder for relative paths in the document."""
    return str(pathlib.Path(config.source).expanduser().absolute().parent)


def _document(config: KubeConfig) -> Document:
    return Document(config.document, config.source, aliases=config.own)
