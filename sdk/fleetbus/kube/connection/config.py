"""Turns a kubeconfig into a connection: host, TLS, credentials.

kubernetes_asyncio reads the file and runs its credential plugins; requests then use plain aiohttp,
because that library's own request path costs ten times as much.
Importing kubernetes_asyncio costs 1.7 s and 97 MB, nearly all of it typed models that we never
use. `import_light` leaves them out; processes that run user code do not call it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import pathlib
import ssl
import sys
import types
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.address import AddressPolicy
from fleetbus.kube.connection.kubeconfig_document import Document
from fleetbus.process.file_errors import file_problem
from fleetbus.process.redact import without_secrets
from fleetbus.process.settings import allows_loopback
from fleetbus.process.waiting import wait_until_usable

if TYPE_CHECKING:
    from fleetbus.process.health import Health

MAX_UPLOAD: Final = 256 * 1024
"""Bytes of an uploaded kubeconfig (rule S7)."""
_REFUSED_OF_USERS: Final = frozenset(
    {"exec", "auth-provider", "tokenFile", "client-certificate", "client-key"}
)
_REFUSED_OF_CLUSTERS: Final = frozenset(
    {"certificate-authority", "insecure-skip-tls-verify", "proxy-url"}
)
_STRINGS_OF_USERS: Final = frozenset(
    {"token", "username", "password", "client-certificate-data", "client-key-data"}
)
_STRINGS_OF_CLUSTERS: Final = frozenset({"server", "certificate-authority-data", "tls-server-name"})


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
    addresses: list[str] = field(default_factory=list[str], init=False, compare=False)
    """Server and proxy, cached: they are read at each change of the fleet."""

    @property
    def policy(self) -> AddressPolicy:
        """Which addresses the API server and a proxy may have."""
        return AddressPolicy(http=self.http, loopback=self.own or allows_loopback())

    def __repr__(self) -> str:
        return f"KubeConfig(source={self.source!r}, context={self.context!r})"


@dataclass(slots=True)
class Connection:
    """The parameters for aiohttp to connect to one API server."""

    host: str
    ssl: ssl.SSLContext | None
    proxy: str | None
    server_hostname: str | None
    headers: dict[str, str]


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
        found = load_kube_config(config.source, config.context)
        server_of(found)
    except ConfigError:  # it may be half-written
        return config
    return replace(config, document=found.document)


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
        name: replace(config, document=part, context=name)
        for name, part in document.parts().items()
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
    return without_secrets(_addresses(config)[0])


def cluster_fields(config: KubeConfig) -> dict[str, Any]:
    """The cluster section of the context to use: address and trust, no credentials.

    Raises:
        ConfigError: the document lacks something that its context names.
    """
    return _document(config).cluster_of(config.context)


def _addresses(config: KubeConfig) -> list[str]:
    """The URLs of the API server and of its proxy, parsed once; empty for none."""
    if not config.addresses:
        cluster = _document(config).cluster_of(config.context)
        config.addresses.extend(str(cluster.get(name) or "") for name in ("server", "proxy-url"))
    return config.addresses


def is_same_server(one: KubeConfig, other: KubeConfig) -> bool:
    """Whether both lead to the same API server with the same trust; credentials may differ."""
    if (one.insecure, one.http, one.own) != (other.insecure, other.http, other.own):
        return False
    try:
        first, second = (_document(each).cluster_of(each.context) for each in (one, other))
    except ConfigError:
        return False
    return first == second


def user_fields(config: KubeConfig) -> dict[str, Any]:
    """The user section of the context to use: its credentials, or where they are.

    Raises:
        ConfigError: the document lacks something that its context names.
    """
    return _document(config).user_of(config.context)


def check_server(config: KubeConfig) -> None:
    """Check the addresses of the API server and of its proxy as they are written (rule S7).

    Raises:
        ConfigError: one is not allowed, or the document lacks something that its context names.
    """
    server, proxy = _addresses(config)
    if not server:
        raise ConfigError(f"{config.source}: context {current_context(config)!r} has no server")
    policy = config.policy
    if refused := policy.refusal(server):
        raise ConfigError(f"{config.source}: server: {refused}")
    if proxy and (refused := policy.proxy_refusal(proxy)):
        raise ConfigError(f"{config.source}: proxy-url: {refused}")


def read_upload(text: str, source: str) -> KubeConfig:
    """The current context of an uploaded kubeconfig, without the rest of it.

    Its addresses are not checked yet: that needs the fields of the Cluster; see `check_server`.

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
        check_server(config)
    except ConfigError as e:
        return str(e)
    return ""


def _check_size(config: KubeConfig) -> None:
    if len(config.document.encode(errors="surrogatepass")) > MAX_UPLOAD:
        raise ConfigError(f"{config.source}: larger than {MAX_UPLOAD // 1024} KiB")


def _check_upload(document: Document, context: str) -> None:
    # Entries that no context names are checked too: another context may become current.
    for entry in document.entries("users"):
        _check_entry(document.source, "user", entry, _REFUSED_OF_USERS, _STRINGS_OF_USERS)
    for entry in document.entries("clusters"):
        _check_entry(document.source, "cluster", entry, _REFUSED_OF_CLUSTERS, _STRINGS_OF_CLUSTERS)
    document.cluster_of(context)


def _check_entry(
    source: str, kind: str, entry: dict[str, Any], refused: frozenset[str], strings: frozenset[str]
) -> None:
    where = f"{source}: {kind} {entry['name']!r}"
    found: object = entry.get(kind) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{where} is not a map")
    fields = cast("dict[str, Any]", found)
    for name in sorted(refused & fields.keys()):
        raise ConfigError(f"{where}: {name!r} is not allowed")
    for name in sorted(strings & fields.keys()):
        if not isinstance(fields[name], str):
            raise ConfigError(f"{where}: {name!r} is not a string")


async def connect(config: KubeConfig | None) -> Connection:
    """Load credentials; None means the service account of the pod we run in.

    Raises:
        ConfigError: the document is incomplete, or a credential plugin failed.
    """
    import_light_or_full()
    from kubernetes_asyncio.client.configuration import (  # noqa: PLC0415 -- see the docstring of the module
        Configuration,
    )

    target = Configuration()
    try:
        if config is None:
            _load_in_cluster(target)
        else:
            await _load_document(config, target)
        return await _connection(target, insecure=config is not None and config.insecure)
    except ConfigError:
        raise
    except Exception as e:  # the loader raises anything, KeyError and binascii.Error included
        source = config.source if config else "the pod's service account, as no kubeconfig is given"
        raise ConfigError(f"{source}: {type(e).__name__}: {e}") from e


def import_client() -> None:
    """Import what `connect` needs, which takes seconds: call it before anything else runs."""
    import_light_or_full()
    importlib.import_module("kubernetes_asyncio.client.configuration")


def import_light_or_full() -> None:
    """Import kubernetes_asyncio as the process is configured; see `import_light`."""
    if "kubernetes_asyncio" not in sys.modules and os.environ.get("FLEETBUS_LIGHT_KUBE") == "1":
        import_light()


def import_light() -> None:
    """Make kubernetes_asyncio importable without its typed models, for the whole process.

    Afterwards there is no `CoreV1Api` and no `dynamic`: call it only where no user code runs.
    """
    if "kubernetes_asyncio" in sys.modules:
        return
    root = next(
        (p for s in sys.path if (p := pathlib.Path(s) / "kubernetes_asyncio").is_dir()), None
    )
    if root is None:
        return
    try:
        _stub_packages(root)
    except Exception:  # noqa: BLE001 -- a release with another layout: use the plain import
        for name in [n for n in sys.modules if n.split(".")[0] == "kubernetes_asyncio"]:
            del sys.modules[name]


def _stub_packages(root: pathlib.Path) -> None:
    _stub("kubernetes_asyncio", root)
    client = cast("Any", _stub("kubernetes_asyncio.client", root / "client"))
    client.models = _stub("kubernetes_asyncio.client.models", root / "client" / "models")
    from kubernetes_asyncio.client import exceptions  # noqa: PLC0415
    from kubernetes_asyncio.client.configuration import Configuration  # noqa: PLC0415

    client.Configuration, client.exceptions = Configuration, exceptions
    client.ApiException = exceptions.ApiException
    from kubernetes_asyncio.client.api_client import ApiClient  # noqa: PLC0415

    client.ApiClient = ApiClient


def _stub(name: str, path: pathlib.Path) -> types.ModuleType:
    module = types.ModuleType(name)
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = [str(path)]
    module.__spec__ = spec
    spec.submodule_search_locations = module.__path__
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def _load_in_cluster(target: Any) -> None:
    from kubernetes_asyncio.config import incluster_config  # noqa: PLC0415

    cast("Any", incluster_config).load_incluster_config(client_configuration=target)


async def _load_document(config: KubeConfig, target: Any) -> None:
    from kubernetes_asyncio.config.kube_config import (  # noqa: PLC0415
        KubeConfigLoader,
    )

    check_server(config)  # before a credential plugin runs
    loader = cast("Any", KubeConfigLoader)(
        config_dict=_document(config).with_user(config.context),
        config_base_path=_folder_of(config),
        active_context=current_context(config),
    )
    await loader.load_and_set(target)


def _folder_of(config: KubeConfig) -> str:
    """The folder for relative paths in the document."""
    return str(pathlib.Path(config.source).expanduser().absolute().parent)


async def _connection(target: Any, *, insecure: bool) -> Connection:
    headers: dict[str, str] = {}
    for auth in (await target.auth_settings()).values():
        headers[auth["key"]] = str(auth["value"]).strip()  # a token file ends in a newline
    host = str(target.host).rstrip("/")
    return Connection(
        host=host,
        ssl=_ssl_context(target, insecure=insecure) if host.lower().startswith("https") else None,
        proxy=target.proxy or None,
        server_hostname=target.tls_server_name or None,
        headers=headers,
    )


def _ssl_context(target: Any, *, insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=target.ssl_ca_cert or None)
    if target.cert_file:
        context.load_cert_chain(target.cert_file, keyfile=target.key_file)
    if insecure or not target.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _document(config: KubeConfig) -> Document:
    return Document(config.document, config.source, aliases=config.own)
