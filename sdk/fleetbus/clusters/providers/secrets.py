"""Provider `secrets`: labelled Secrets of one namespace of the hub, each a cluster.

It supports our own label, multicluster-runtime's, and Argo CD's cluster Secrets. A cluster is named
after the Secret, for Argo CD by its `name`; its labels are the Secret's without the markers.
Removing the label or the Secret removes the cluster. One that cannot be used has a problem; one
whose name no cluster can have is logged and skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, Final, cast

import orjson

from fleetbus.clusters.access import (
    Access,
    SecretReader,
    checked,
    kubeconfig_of,
    read_access,
    read_member,
    read_text,
)
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.mirror import Objects, Place, SkippedEntries, read_entries, watch_hub
from fleetbus.clusters.providers.kubeconfig import cluster_name
from fleetbus.errors import ConfigError
from fleetbus.kube.client import Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.typed_fields import TypedFields
from fleetbus.kube.json_fields import labels, mapping
from fleetbus.kube.list_watch.reflect import WatchTarget
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import check_cluster

ARGO_LABEL: Final = "argocd.argoproj.io/secret-type"
MARKERS: Final = {
    "fleetbus.dev/kubeconfig": "true",
    "sigs.k8s.io/multicluster-runtime-kubeconfig": "true",
    ARGO_LABEL: "cluster",
}
"""The labels that mark a Secret as a cluster."""
_SECRETS: Final = "v1/secrets"


class SecretsProvider:
    """Clusters from labelled Secrets of the hub.

    Args:
        hub: access data of the hub; None means the pod's service account.
        namespace: the namespace of the Secrets; no other is read.
        labels: the labels of `MARKERS` to use.
        key: the data key of the kubeconfig.
    """

    name = "secrets"

    def __init__(
        self,
        hub: KubeConfig | None,
        *,
        namespace: str,
        labels: Sequence[str] = tuple(MARKERS),
        key: str = "kubeconfig",
    ) -> None:
        self._hub = hub
        self._namespace = namespace
        self._labels = list(labels)
        self._kubeconfigs = SecretReader(partial(_read_access, key=key))
        self._skipped = SkippedEntries(self.name)

    def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield all clusters at each change of a Secret that changes a cluster."""
        resource = parse_resource(_SECRETS)
        targets = [
            WatchTarget(
                resource, namespace=self._namespace, label_selector=f"{label}={MARKERS[label]}"
            )
            for label in self._labels
        ]
        return watch_hub(self._hub, targets, self._read, self._kubeconfigs.follow)

    def _read(self, object_sets: Sequence[Objects]) -> list[ClusterInfo]:
        # A Secret with two of the labels is still one cluster.
        secrets: Objects = {place: obj for objects in object_sets for place, obj in objects.items()}
        self._kubeconfigs.forget_all_but(secrets)
        infos, reasons = read_entries(secrets, lambda place: self._info(place, secrets[place]))
        self._skipped.report(reasons)
        return infos

    def _info(self, place: Place, secret: Object) -> ClusterInfo:
        config, problem = self._kubeconfigs.read(place, secret)
        return ClusterInfo(
            name=_name_of(place[1], secret),
            labels={n: v for n, v in labels(secret).items() if n not in MARKERS},
            provider=self.name,
            config=config,
            problem=problem,
        )


def _is_of_argo(secret: Object) -> bool:
    return labels(secret).get(ARGO_LABEL) == MARKERS[ARGO_LABEL]


def _name_of(name: str, secret: Object) -> str:
    if not _is_of_argo(secret):
        return check_cluster(name)
    argo_name, _ = read_text(name, secret, "name")
    return cluster_name(argo_name or name)


def _read_access(place: str, secret: Object, *, key: str) -> Access:
    if _is_of_argo(secret) and key not in mapping(secret, "data"):
        return _read_argo(place, secret)
    return read_member(place, secret, key=key)


# --- Argo CD ------------------------------------------------------------------------------------

_HUB: Final = "https://kubernetes.default.svc"
"""The address that stands for the cluster that Argo CD runs in."""
_REFUSED: Final = ("awsAuthConfig", "execProviderConfig")


def _read_argo(place: str, secret: Object) -> Access:
    """Convert a cluster Secret of Argo CD to a kubeconfig; plugins are refused (rule S7)."""
    try:
        document = _argo_kubeconfig(f"Secret {place}", secret)
    except ConfigError as e:
        return None, str(e)
    return checked(read_access(document, f"Secret {place}"))


def _argo_kubeconfig(where: str, secret: Object) -> str:
    """The kubeconfig of a cluster Secret.

    Raises:
        ConfigError: it is malformed, would run code, or has what fleetbus cannot honour.
    """
    server = _argo_text(where, secret, "server")
    is_hub = server.rstrip("/") == _HUB
    fields = _argo_config(where, secret, is_optional=is_hub)
    tls = fields.map("tlsClientConfig") or TypedFields({}, fields.where)
    user = {
        "token": fields.text("bearerToken"),
        "username": fields.text("username"),
        "password": fields.text("password"),
        "client-certificate-data": tls.text("certData"),
        "client-key-data": tls.text("keyData"),
    }
    if is_hub and not (user["token"] or user["username"] or user["password"]):
        raise ConfigError(
            f"{where}: {_HUB} without credentials is the hub itself, with the rights of whoever"
            " reads this; join it with `fleetbus join NAME --bootstrap` instead"
        )
    if fields.raw("tlsClientConfig") and tls.raw("insecure"):
        raise tls.error("insecure", "is not allowed")
    for name in _REFUSED:
        if fields.raw(name):
            raise fields.error(name, "is not allowed")
    if mapping(secret, "data").get("namespaces"):
        raise ConfigError(
            f"{where}: data key 'namespaces' limits Argo CD to some namespaces, and this provider"
            " has no such limit; name them in spec.resources of a Cluster instead"
        )
    cluster = {
        "server": server,
        "certificate-authority-data": tls.text("caData"),
        "tls-server-name": tls.text("serverName"),
        "proxy-url": fields.text("proxyUrl"),
        "disable-compression": fields.flag("disableCompression"),
    }
    return kubeconfig_of(cluster, user)


def _argo_text(where: str, secret: Object, key: str) -> str:
    text, problem = read_text(where.removeprefix("Secret "), secret, key)
    if problem:
        raise ConfigError(problem)
    return text


def _argo_config(where: str, secret: Object, *, is_optional: bool) -> TypedFields:
    """Argo CD's `config`.

    Raises:
        ConfigError: it is malformed or missing.
    """
    if is_optional and not mapping(secret, "data").get("config"):
        return TypedFields({}, f"{where}: config")
    try:
        config: object = orjson.loads(_argo_text(where, secret, "config"))
    except orjson.JSONDecodeError:
        raise ConfigError(f"{where}: data key 'config' is not JSON") from None
    if not isinstance(config, dict | None):
        raise ConfigError(f"{where}: data key 'config' is not a map")
    return TypedFields(cast("dict[str, Any]", config or {}), f"{where}: config")
