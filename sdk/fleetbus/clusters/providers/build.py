"""Builds providers from settings; custom ones are entry points of `fleetbus.providers`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from fleetbus.clusters.info import ClusterInfo, Provider
from fleetbus.clusters.providers.cluster import ClusterProvider
from fleetbus.clusters.providers.cluster_api import ClusterApiProvider
from fleetbus.clusters.providers.cluster_inventory import ClusterInventoryProvider
from fleetbus.clusters.providers.file import FileProvider
from fleetbus.clusters.providers.kind import KindProvider
from fleetbus.clusters.providers.kubeconfig import KubeconfigProvider
from fleetbus.clusters.providers.secrets import MARKERS, SecretsProvider
from fleetbus.clusters.registry import Clusters, MakeClient
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import KubeConfig, read_kube_config, wait_for_kube_config
from fleetbus.process.settings import ProviderSettings, SharedSettings
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster

if TYPE_CHECKING:
    from fleetbus.process.health import Health

log = structlog.get_logger()

Build = Callable[[Mapping[str, Any], KubeConfig | None], Provider]
"""Builds a provider from its options and the access data of the hub."""


class Prefixed:
    """Puts a prefix before the names of another provider, so that two providers cannot collide."""

    def __init__(self, provider: Provider, prefix: str) -> None:
        self._provider = provider
        try:
            self._prefix = check_cluster(prefix)
        except InvalidName as e:
            raise ConfigError(f"setting FLEETBUS_PROVIDERS: prefix: {e}") from e

    @property
    def name(self) -> str:
        """The wrapped provider's name."""
        return self._provider.name

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield the wrapped provider's sets under other names."""
        async with aclosing(self._provider.cluster_sets()) as sets:
            async for infos in sets:
                renamed = [self._rename(info) for info in infos]
                yield [info for info in renamed if info is not None]

    def _rename(self, info: ClusterInfo) -> ClusterInfo | None:
        try:
            return replace(info, name=f"{self._prefix}-{info.name}")
        except InvalidName as e:  # the prefix makes it too long
            log.warning("cluster_skipped", provider=self.name, cluster=info.name, error=str(e))
            return None


def build_clusters(settings: SharedSettings, *, make_client: MakeClient | None = None) -> Clusters:
    """Build the registry from the settings.

    Args:
        settings: providers and hub.
        make_client: as for `Clusters`.

    Raises:
        ConfigError: a provider, its options or the hub's kubeconfig is wrong.
    """
    hub = hub_config(settings)
    providers = [build_provider(provider, hub) for provider in settings.providers]
    info = None
    if settings.hub_cluster:
        info = ClusterInfo(name=settings.hub_cluster, hub=True, provider="hub", config=hub)
    return Clusters(providers, hub=info, make_client=make_client)


def hub_config(settings: SharedSettings) -> KubeConfig | None:
    """Access data of the hub; None means the pod's service account."""
    if settings.hub_kubeconfig is None:
        return None
    return read_kube_config(settings.hub_kubeconfig, settings.hub_context)


async def wait_for_hub(settings: SharedSettings, health: Health) -> None:
    """Wait until the hub's kubeconfig can be read; a mounted Secret may come late."""
    if settings.hub_kubeconfig is not None:
        await wait_for_kube_config(
            settings.hub_kubeconfig, settings.hub_context, name="hub kubeconfig", health=health
        )


def build_provider(settings: ProviderSettings, hub: KubeConfig | None) -> Provider:
    """Build one provider.

    Raises:
        ConfigError: the type is unknown, or an option is wrong.
    """
    build = _BUILT_IN.get(settings.type) or _from_entry_point(settings.type)
    provider = build(settings.options, hub)
    return Prefixed(provider, settings.prefix) if settings.prefix else provider


def _from_entry_point(kind: str) -> Build:
    for point in entry_points(group="fleetbus.providers", name=kind):
        return point.load()
    types = ", ".join(sorted(_BUILT_IN))
    raise ConfigError(f"setting FLEETBUS_PROVIDERS: type {kind!r} is not one of {types}")


def _file(options: Mapping[str, Any], _hub: KubeConfig | None) -> Provider:
    _check_options("file", options, {"path"})
    return FileProvider(_string("file", options, "path"))


def _kubeconfig(options: Mapping[str, Any], _hub: KubeConfig | None) -> Provider:
    _check_options("kubeconfig", options, {"paths", "contexts"})
    paths = _strings("kubeconfig", options, "paths")
    only = _strings("kubeconfig", options, "contexts") if "contexts" in options else None
    return KubeconfigProvider(paths, only=only)


def _cluster(options: Mapping[str, Any], hub: KubeConfig | None) -> Provider:
    _check_options("cluster", options, {"namespace"})
    return ClusterProvider(hub, _optional("cluster", options, "namespace"))


def _secrets(options: Mapping[str, Any], hub: KubeConfig | None) -> Provider:
    _check_options("secrets", options, {"namespace", "labels", "key"})
    labels = _strings("secrets", options, "labels") if "labels" in options else list(MARKERS)
    if unknown := sorted(set(labels) - MARKERS.keys()):
        names = ", ".join(MARKERS)
        raise ConfigError(f"provider 'secrets': labels: {unknown[0]!r} is not one of {names}")
    key = _string("secrets", options, "key") if "key" in options else "kubeconfig"
    namespace = _string("secrets", options, "namespace")
    return SecretsProvider(hub, namespace=namespace, labels=labels, key=key)


def _cluster_api(options: Mapping[str, Any], hub: KubeConfig | None) -> Provider:
    _check_options("cluster-api", options, {"namespace", "labelSelector"})
    return ClusterApiProvider(
        hub,
        namespace=_optional("cluster-api", options, "namespace"),
        label_selector=_optional("cluster-api", options, "labelSelector"),
    )


def _cluster_inventory(options: Mapping[str, Any], hub: KubeConfig | None) -> Provider:
    _check_options("cluster-inventory", options, {"consumer", "namespace", "plugins"})
    plugins: object = options.get("plugins", {})
    if not isinstance(plugins, dict) or not all(
        isinstance(v, dict) and isinstance(v.get("command"), str)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        for v in plugins.values()  # pyright: ignore[reportUnknownVariableType]
    ):
        raise ConfigError(
            "provider 'cluster-inventory': field 'plugins' must be a map from the name of an"
            " access provider to a map with at least 'command'"
        )
    return ClusterInventoryProvider(
        hub,
        consumer=_optional("cluster-inventory", options, "consumer") or "fleetbus",
        namespace=_optional("cluster-inventory", options, "namespace"),
        plugins=cast("dict[str, dict[str, Any]]", plugins),
    )


def _kind(options: Mapping[str, Any], _hub: KubeConfig | None) -> Provider:
    _check_options("kind", options, {"onlyPrefix"})
    return KindProvider(only_prefix=_optional("kind", options, "onlyPrefix"))


_BUILT_IN: Final[dict[str, Build]] = {
    "file": _file,
    "kubeconfig": _kubeconfig,
    "cluster": _cluster,
    "secrets": _secrets,
    "cluster-api": _cluster_api,
    "cluster-inventory": _cluster_inventory,
    "kind": _kind,
}


def _check_options(kind: str, options: Mapping[str, Any], fields: set[str]) -> None:
    if unknown := sorted(options.keys() - fields):
        raise ConfigError(f"provider {kind!r}: unknown field {', '.join(unknown)}")


def _string(kind: str, options: Mapping[str, Any], field: str) -> str:
    value: object = options.get(field)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"provider {kind!r}: field {field!r} must be a string")
    return value


def _optional(kind: str, options: Mapping[str, Any], field: str) -> str:
    return _string(kind, options, field) if field in options else ""


def _strings(kind: str, options: Mapping[str, Any], field: str) -> list[str]:
    value: object = options.get(field)
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):  # pyright: ignore[reportUnknownVariableType]
        raise ConfigError(f"provider {kind!r}: field {field!r} must be a list of strings")
    return [str(v) for v in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
