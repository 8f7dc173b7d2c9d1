"""From a kubeconfig to a connection: host, TLS, credentials.

kubernetes_asyncio reads the file and runs its credential plugins; the connection is then plain
aiohttp, because the client's own request path costs ten times as much.
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
from typing import Any, Final, TypeAlias, cast

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.address import AddressPolicy
from fleetbus.kube.connection.kubeconfig_document import Document
from fleetbus.process.redact import without_secrets
from fleetbus.process.settings import allows_loopback

MAX_UPLOAD: Final = 256 * 1024
"""Bytes of a kubeconfig that someone uploaded (rule S7)."""
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
"""Answers None if that is not possible now."""


@dataclass(frozen=True, slots=True)
class KubeConfig:
    """One cluster's access data: a kubeconfig document and the context to use.

    Equal values mean an equal connection, so that an unchanged file causes no reconnect.
    """

    document: str
    """The kubeconfig as YAML or JSON text; it may hold secrets and is never logged."""
    context: str = ""
    source: str = "kubeconfig"
    """Where it came from, for messages."""
    insecure: bool = False
    """The certificate is not verified."""
    http: bool = False
    """Plain http is allowed, as an explicit field of the Cluster or the entry says (rule S7)."""
    own: bool = False
    """A file of whoever runs this process: it may lead to this machine and have YAML aliases."""
    renew: Renew | None = field(default=None, compare=False)
    """Reads it anew where it came from, once it is refused (rule W19); None for a file."""
    addresses: list[str] = field(default_factory=list[str], init=False, compare=False)
    """Server and proxy, once they are known: they are asked for at each change of a fleet."""

    @property
    def policy(self) -> AddressPolicy:
        """Which addresses the API server and a proxy may have."""
        return AddressPolicy(http=self.http, loopback=self.own or allows_loopback())

    def __repr__(self) -> str:
        return f"KubeConfig(source={self.source!r}, context={self.context!r})"


@dataclass(slots=True)
class Connection:
    """What aiohttp needs to talk to one API server."""

    host: str
    ssl: ssl.SSLContext | None
    proxy: str | None
    server_hostname: str | None
    headers: dict[str, str]


def read_kube_config(path: str | os.PathLike[str], context: str = "") -> KubeConfig:
    """Read a kubeconfig file of whoever runs this process.

    Raises:
        ConfigError: the file cannot be read, is not a kubeconfig, or lacks the context.
    """
    config = load_kube_config(path, context)
    names = contexts(config)
    if context and context not in names:
        raise ConfigError(f"{path}: context {context!r} is not one of {', '.join(names) or 'none'}")
    return config


def load_kube_config(path: str | os.PathLike[str], context: str = "") -> KubeConfig:
    """The same, not parsed yet.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        text = expand_home(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name, or not UTF-8
        raise ConfigError(f"{path}: cannot read the kubeconfig: {e}") from e
    return KubeConfig(text, context, str(path), http=True, own=True)


def signature_of(config: KubeConfig | None) -> tuple[int, ...]:
    """What changes when the file of a kubeconfig does; empty if it is from no file of ours."""
    if config is None or not config.own:
        return ()
    try:
        stat = expand_home(config.source).stat()
    except (OSError, ValueError, ConfigError):
        return ()
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def read_again(config: KubeConfig) -> KubeConfig:
    """The access data as their file has them now (rule W19); the same if it cannot be used."""
    if not signature_of(config):
        return config
    try:
        found = load_kube_config(config.source, config.context)
        server_of(found)
    except ConfigError:  # perhaps it is half written
        return config
    return replace(config, document=found.document)


def expand_home(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path with a leading `~` replaced.

    Raises:
        ConfigError: that user has no home.
    """
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError as e:
        raise ConfigError(f"{path}: {e}") from e


def contexts(config: KubeConfig) -> list[str]:
    """The names of the contexts in a kubeconfig, in their order.

    Raises:
        ConfigError: the document is not a kubeconfig.
    """
    return [str(entry["name"]) for entry in _document(config).entries("contexts")]


def by_context(config: KubeConfig) -> dict[str, KubeConfig]:
    """Every context of a document, each with its own part of it and nothing else.

    So another context that comes, goes or becomes current is no change of this one.

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
    """The context to use: the one asked for, or the document's own."""
    return config.context or _document(config).current_context


def server_of(config: KubeConfig) -> str:
    """The API server's address, without connecting; empty if the document does not say.

    It may be shown: a user and password inside it are left out.

    Raises:
        ConfigError: the document does not hold what its context names.
    """
    return without_secrets(_addresses(config)[0])


def _addresses(config: KubeConfig) -> list[str]:
    """The API server's URL and that of its proxy, parsed once; empty if there is none."""
    if not config.addresses:
        cluster = _document(config).cluster_of(config.context)
        config.addresses.extend(str(cluster.get(name) or "") for name in ("server", "proxy-url"))
    return config.addresses


def is_same_server(one: KubeConfig, other: KubeConfig) -> bool:
    """Whether both lead to the same API server and trust it alike: only who we are may differ."""
    if (one.insecure, one.http, one.own) != (other.insecure, other.http, other.own):
        return False
    try:
        first, second = (_document(each).cluster_of(each.context) for each in (one, other))
    except ConfigError:
        return False
    return first == second


def check_server(config: KubeConfig) -> None:
    """Check the addresses of the API server and of its proxy as they are written (rule S7).

    Raises:
        ConfigError: one is not allowed, or the document does not hold what its context names.
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
    """The current context of a kubeconfig that someone uploaded, and nothing else of it.

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
    """Why a kubeconfig that someone uploaded must not be used; empty if it may (rule S7).

    Plugins run code and file names read files where we run, and TLS may be left unverified only
    by the explicit field of the Cluster.
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
    # An entry that no context names is looked at too: another context may become current.
    for entry in document.entries("users"):
        _check_entry(document.source, "user", entry, _REFUSED_OF_USERS, _STRINGS_OF_USERS)
    for entry in document.entries("clusters"):
        _check_entry(document.source, "cluster", entry, _REFUSED_OF_CLUSTERS, _STRINGS_OF_CLUSTERS)
    document.cluster_of(context)


def _check_entry(
    source: str, kind: str, entry: dict[str, Any], refused: frozenset[str], strings: frozenset[str]
) -> None:
    where = f"{source}: {kind} {entry['name']!r}"
    said: object = entry.get(kind) or {}
    if not isinstance(said, dict):
        raise ConfigError(f"{where} is not a map")
    fields = cast("dict[str, Any]", said)
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
    from kubernetes_asyncio.client.configuration import (  # noqa: PLC0415 -- see the module's text
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
        source = config.source if config else "service account of a pod, as no kubeconfig is named"
        raise ConfigError(f"{source}: {type(e).__name__}: {e}") from e


def import_client() -> None:
    """Import what `connect` needs, which takes seconds: best before anything else runs."""
    import_light_or_full()
    importlib.import_module("kubernetes_asyncio.client.configuration")


def import_light_or_full() -> None:
    """Import kubernetes_asyncio as the process wants it; see `import_light`."""
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
    except Exception:  # noqa: BLE001 -- a release with another layout: the plain import is right
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
        config_dict=_document(config).fields,
        config_base_path=_folder_of(config),
        active_context=current_context(config),
    )
    await loader.load_and_set(target)


def _folder_of(config: KubeConfig) -> str:
    """Where relative paths inside the document start."""
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
