"""Provider `secrets`: labelled Secrets of one namespace of the hub, each a cluster.

It supports our own label, multicluster-runtime's, and Argo CD's cluster Secrets. A cluster is named
after the Secret, for Argo CD by its `name`; its labels are the Secret's without the markers.
Removing the label or the Secret removes the cluster; unusable entries are logged and skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
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
from fleetbus.clusters.fields import labels_of, map_of
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.mirror import Objects, Place, SkippedEntries, read_entries, watch_hub
from fleetbus.clusters.providers.kubeconfig import cluster_name
from fleetbus.errors import ConfigError
from fleetbus.kube.client import Object
from fleetbus.kube.connection.config import KubeConfig
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

    def _read(self, found: Sequence[Objects]) -> list[ClusterInfo]:
        # A Secret with two of the labels is still one cluster.
        secrets: Objects = {place: obj for objects in found for place, obj in objects.items()}
        self._kubeconfigs.forget_all_but(secrets)
        infos, reasons = read_entries(secrets, lambda place: self._info(place, secrets[place]))
        self._skipped.report(reasons)
        return infos

    def _info(self, place: Place, secret: Object) -> ClusterInfo:
        config, problem = self._kubeconfigs.read(place, secret)
        if problem:
            raise ConfigError(problem)
        return ClusterInfo(
            name=_name_of(place[1], secret),
            labels={n: v for n, v in labels_of(secret).items() if n not in MARKERS},
            provider=self.name,
            config=config,
        )


def _is_of_argo(secret: Object) -> bool:
    return labels_of(secret).get(ARGO_LABEL) == MARKERS[ARGO_LABEL]


def _name_of(name: str, secret: Object) -> str:
    if not _is_of_argo(secret):
        return check_cluster(name)
    given, _ = read_text(name, secret, "name")
    return cluster_name(given or name)


def _read_access(said: str, secret: Object, *, key: str) -> Access:
    if _is_of_argo(secret) and key not in map_of(secret.get("data")):
        return _read_argo(said, secret)
    return read_member(said, secret, key=key)


# --- Argo CD ------------------------------------------------------------------------------------

_REFUSED: Final = ("awsAuthConfig", "execProviderConfig")
_TRUST: Final = {"caData": "certificate-authority-data", "serverName": "tls-server-name"}
_USER: Final = {"bearerToken": "token", "username": "username", "password": "password"}
_CERTIFICATE: Final = {"certData": "client-certificate-data", "keyData": "client-key-data"}


def _read_argo(said: str, secret: Object) -> Access:
    """Convert a cluster Secret of Argo CD to a kubeconfig; plugins are refused (rule S7)."""
    server, problem = read_text(said, secret, "server")
    text, missing = read_text(said, secret, "config")
    if problem or missing:
        return None, problem or missing
    try:
        config, tls = _argo_config(text)
        trust = _renamed(tls, _TRUST)
        user = _renamed(config, _USER) | _renamed(tls, _CERTIFICATE)
    except ValueError as e:
        return None, f"Secret {said}: {e}"
    return checked(read_access(kubeconfig_of({"server": server, **trust}, user), f"Secret {said}"))


def _argo_config(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Argo CD's `config` and its `tlsClientConfig`.

    Raises:
        ValueError: they are malformed, or would run code.
    """
    try:
        config: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ValueError("data key 'config' is not JSON") from None
    if not isinstance(config, dict):
        raise ValueError("data key 'config' is not a map")  # noqa: TRY004 -- a value of a user
    fields = cast("dict[str, Any]", config)
    tls: object = fields.get("tlsClientConfig") or {}
    if not isinstance(tls, dict):
        raise ValueError("config: 'tlsClientConfig' is not a map")  # noqa: TRY004
    of_tls = cast("dict[str, Any]", tls)
    if of_tls.get("insecure"):
        raise ValueError("config: 'tlsClientConfig.insecure' is not allowed")
    for field in _REFUSED:
        if fields.get(field):
            raise ValueError(f"config: {field!r} is not allowed")
    return fields, of_tls


def _renamed(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    found = {ours: fields[theirs] for theirs, ours in names.items() if fields.get(theirs)}
    for theirs, ours in names.items():
        if not isinstance(found.get(ours, ""), str):
            raise ValueError(f"config: {theirs!r} is not a string")  # noqa: TRY004
    return found
