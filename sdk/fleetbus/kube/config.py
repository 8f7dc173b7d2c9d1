"""From a kubeconfig to a connection: host, TLS, credentials.

kubernetes_asyncio reads the file and runs its credential plugins; the connection is then plain
aiohttp, because the client's own request path costs ten times as much.
Importing kubernetes_asyncio costs 1.7 s and 97 MB, nearly all of it typed models that we never
use. `import_light` leaves them out; processes that run user code do not call it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import pathlib
import ssl
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson
import yaml

from fleetbus.errors import ConfigError
from fleetbus.redact import without_secrets

_SECTIONS: Final = ("clusters", "contexts", "users")
_REFUSED_OF_USERS: Final = frozenset(
    {"exec", "auth-provider", "tokenFile", "client-certificate", "client-key"}
)
_REFUSED_OF_CLUSTERS: Final = frozenset(
    {"certificate-authority", "insecure-skip-tls-verify", "proxy-url"}
)


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
    """Read a kubeconfig file.

    Raises:
        ConfigError: the file cannot be read, is not a kubeconfig, or lacks the context.
    """
    try:
        text = expand_home(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name, or not UTF-8
        raise ConfigError(f"{path}: cannot read the kubeconfig: {e}") from e
    config = KubeConfig(text, context, str(path))
    names = contexts(config)
    if context and context not in names:
        raise ConfigError(f"{path}: context {context!r} is not one of {', '.join(names) or 'none'}")
    return config


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
    found = _section(_document(config), "contexts", config.source)
    return [str(entry["name"]) for entry in found]


def by_context(config: KubeConfig) -> dict[str, KubeConfig]:
    """Every context of a document, each with its own part of it and nothing else.

    So another context that comes, goes or becomes current is no change of this one.

    Raises:
        ConfigError: the document is not a kubeconfig.
    """
    document = _document(config)
    sections = {field: _entries(document, field, config.source) for field in _SECTIONS}
    return {
        name: KubeConfig(_part(sections, name, config), name, config.source, config.insecure)
        for name in sections["contexts"]
    }


def _part(
    sections: Mapping[str, Mapping[str, dict[str, Any]]], name: str, whole: KubeConfig
) -> str:
    context = sections["contexts"][name].get("context")
    wanted = cast("dict[str, Any]", context) if isinstance(context, dict) else {}
    names = {"contexts": name, "clusters": wanted.get("cluster"), "users": wanted.get("user")}
    part = {
        field: [entries[str(names[field])]] if str(names[field]) in entries else []
        for field, entries in sections.items()
    }
    try:
        # YAML knows dates and endless loops, JSON does not.
        return json.dumps({**part, "current-context": name}, default=str)
    except (ValueError, TypeError, RecursionError) as e:
        raise ConfigError(f"{whole.source}: context {name!r} cannot be read: {e}") from e


def current_context(config: KubeConfig) -> str:
    """The context to use: the one asked for, or the document's own."""
    return config.context or str(_document(config).get("current-context") or "")


def server_of(config: KubeConfig) -> str:
    """The API server's address, without connecting; empty if the document does not say.

    It may be shown: a user and password inside it are left out.

    Raises:
        ConfigError: the document does not hold what its context names.
    """
    document = _document(config)
    name = config.context or str(document.get("current-context") or "")
    if not name:
        raise ConfigError(f"{config.source}: it has no current-context, and no context is named")
    context = _named(document, "contexts", name, config.source)
    cluster = _named(document, "clusters", str(context.get("cluster", "")), config.source)
    return without_secrets(str(cluster.get("server", "")))


def distrust(config: KubeConfig) -> str:
    """Why a kubeconfig that someone uploaded must not be used; empty if it may (rule S7).

    Plugins run code and file names read files where we run, and TLS may be left unverified only
    by the explicit field of the Cluster.
    """
    try:
        document = _document(config)
        users = _section(document, "users", config.source)
        clusters = _section(document, "clusters", config.source)
        server_of(config)
    except ConfigError as e:
        return str(e)
    for section, entries, refused in (
        ("user", users, _REFUSED_OF_USERS),
        ("cluster", clusters, _REFUSED_OF_CLUSTERS),
    ):
        for entry in entries:
            where = f"{config.source}: {section} {entry['name']!r}"
            said: object = entry.get(section) or {}
            if not isinstance(said, dict):
                return f"{where} is not a map"
            for field in sorted(refused & cast("dict[str, Any]", said).keys()):
                return f"{where}: {field!r} is not allowed"
    return ""


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

    server = server_of(config)
    if not server:
        raise ConfigError(f"{config.source}: context {current_context(config)!r} has no server")
    loader = cast("Any", KubeConfigLoader)(
        config_dict=_document(config),
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
        ssl=_ssl_context(target, insecure=insecure) if host.startswith("https") else None,
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


def _document(config: KubeConfig) -> dict[str, Any]:
    found = _parse(config)
    if not isinstance(found, dict) or "clusters" not in found:
        raise ConfigError(f"{config.source}: not a kubeconfig: it has no field 'clusters'")
    return cast("dict[str, Any]", found)


def _parse(config: KubeConfig) -> object:
    if config.document.startswith("{"):
        try:
            return orjson.loads(config.document)  # what `by_context` wrote
        except orjson.JSONDecodeError:
            pass  # YAML may begin like this too
    try:
        return yaml.safe_load(config.document)
    except yaml.YAMLError as e:
        # The text of the error quotes the document, which may hold secrets; so not even its cause.
        place = getattr(e, "problem_mark", None)
        line = f" at line {place.line + 1}" if place else ""
        raise ConfigError(f"{config.source}: not valid YAML{line}") from None
    except (ValueError, RecursionError) as e:  # a date that is none, brackets without end
        raise ConfigError(f"{config.source}: not valid YAML") from e


def _entries(document: Mapping[str, Any], field: str, source: str) -> dict[str, dict[str, Any]]:
    """A section by name; the first of two equal names counts."""
    found: dict[str, dict[str, Any]] = {}
    for entry in _section(document, field, source):
        found.setdefault(str(entry["name"]), entry)
    return found


def _section(document: Mapping[str, Any], field: str, source: str) -> list[dict[str, Any]]:
    found: object = document.get(field) or []
    if not isinstance(found, list):
        raise ConfigError(f"{source}: field {field!r} is not a list")
    entries = cast("list[Any]", found)
    for entry in entries:
        if not isinstance(entry, dict) or "name" not in entry:
            raise ConfigError(f"{source}: an entry of {field!r} has no name")
    return cast("list[dict[str, Any]]", entries)


def _named(document: Mapping[str, Any], field: str, name: str, source: str) -> dict[str, Any]:
    kind = field.removesuffix("s")
    for entry in _section(document, field, source):
        if str(entry["name"]) == name:
            said: object = entry.get(kind)
            if isinstance(said, dict):
                return cast("dict[str, Any]", said)
            raise ConfigError(f"{source}: {kind} {name!r} is not a map")
    raise ConfigError(f"{source}: {field} has no entry named {name!r}")
