"""Provider `secrets`: labelled Secrets of one namespace of the hub, each a cluster.

Read are our own label, multicluster-runtime's, and Argo CD's cluster Secrets. A cluster's name is
the Secret's, for Argo CD the one it gives; its labels are the Secret's, markers left out. Removing
the label or the Secret makes the cluster leave; an entry that cannot be used is told and skipped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, cast

import orjson

from fleetbus.clusters.access import Access, SecretReader, read_kubeconfig, read_text
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.kubeconfig import cluster_name
from fleetbus.clusters.mirror import Objects, Skipped, follow_hub
from fleetbus.kube.client import Object
from fleetbus.kube.config import KubeConfig
from fleetbus.kube.reflect import Target
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import check_cluster

ARGO_LABEL: Final = "argocd.argoproj.io/secret-type"
MARKERS: Final = {
    "fleetbus.dev/kubeconfig": "true",
    "sigs.k8s.io/multicluster-runtime-kubeconfig": "true",
    ARGO_LABEL: "cluster",
}
"""The labels that make a Secret a cluster."""
_SECRETS: Final = "v1/secrets"


class SecretsProvider:
    """Clusters from labelled Secrets of the hub.

    Args:
        hub: access data of the hub; None means the pod's service account.
        namespace: where the Secrets are; nothing else is read.
        labels: which of `MARKERS` count.
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
        self._skipped = Skipped(self.name)

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield all clusters at each change of a Secret that changes a cluster."""
        resource = parse_resource(_SECRETS)
        targets = [
            Target(resource, namespace=self._namespace, label_selector=f"{label}={MARKERS[label]}")
            for label in self._labels
        ]
        async with aclosing(follow_hub(self._hub, targets, self._read)) as sets:
            async for infos in sets:
                yield infos

    def _read(self, found: Sequence[Objects]) -> list[ClusterInfo]:
        # A Secret with two of the labels is one cluster.
        secrets: Objects = {place: obj for objects in found for place, obj in objects.items()}
        self._kubeconfigs.forget_all_but(secrets)
        infos: dict[str, ClusterInfo] = {}
        reasons: dict[str, str] = {}
        for place, secret in sorted(secrets.items()):
            said = "/".join(place)
            try:
                info = self._info(place, secret)
            except InvalidName as e:
                reasons[said] = str(e)
                continue
            if info.problem:
                reasons[said] = info.problem
            elif infos.setdefault(info.name, info) is not info:
                reasons[said] = f"another Secret already gives cluster {info.name!r}"
        self._skipped.tell(reasons)
        return list(infos.values())

    def _info(self, place: tuple[str, str], secret: Object) -> ClusterInfo:
        config, problem = self._kubeconfigs.read(place, secret)
        return ClusterInfo(
            name=_name_of(place[1], secret),
            labels={n: v for n, v in _labels(secret).items() if n not in MARKERS},
            provider=self.name,
            config=config,
            problem=problem,
        )


def _labels(secret: Object) -> dict[str, str]:
    metadata = cast("dict[str, Any]", secret["metadata"])
    return cast("dict[str, str]", metadata.get("labels") or {})


def _is_of_argo(secret: Object) -> bool:
    return _labels(secret).get(ARGO_LABEL) == MARKERS[ARGO_LABEL]


def _name_of(name: str, secret: Object) -> str:
    if not _is_of_argo(secret):
        return check_cluster(name)
    given, _ = read_text(name, secret, "name")
    return cluster_name(given or name)


def _read_access(said: str, secret: Object, *, key: str) -> Access:
    if _is_of_argo(secret) and key not in cast("dict[str, str]", secret.get("data") or {}):
        return _read_argo(said, secret)
    return read_kubeconfig(said, secret, key=key)


# --- Argo CD ------------------------------------------------------------------------------------

_REFUSED: Final = ("awsAuthConfig", "execProviderConfig", "tlsClientConfig.insecure")


def _read_argo(said: str, secret: Object) -> Access:
    """A cluster Secret of Argo CD as a kubeconfig; what would run code is refused (rule S7)."""
    server, problem = read_text(said, secret, "server")
    text, missing = read_text(said, secret, "config")
    if problem or missing:
        return None, problem or missing
    try:
        found: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None, f"Secret {said}: data key 'config' is not JSON"
    if not isinstance(found, dict):
        return None, f"Secret {said}: data key 'config' is not a map"
    config = cast("dict[str, Any]", found)
    tls = cast("dict[str, Any]", config.get("tlsClientConfig") or {})
    for field, value in {**config, "tlsClientConfig.insecure": tls.get("insecure")}.items():
        if field in _REFUSED and value:
            return None, f"Secret {said}: config: {field!r} is not allowed"
    document = _kubeconfig(server, _argo_trust(tls), _argo_user(config, tls))
    return KubeConfig(document, source=f"Secret {said}"), ""


def _argo_trust(tls: Mapping[str, Any]) -> dict[str, Any]:
    names = {"caData": "certificate-authority-data", "serverName": "tls-server-name"}
    return {ours: tls[theirs] for theirs, ours in names.items() if tls.get(theirs)}


def _argo_user(config: Mapping[str, Any], tls: Mapping[str, Any]) -> dict[str, Any]:
    names = {"bearerToken": "token", "username": "username", "password": "password"}
    user = {ours: config[theirs] for theirs, ours in names.items() if config.get(theirs)}
    names = {"certData": "client-certificate-data", "keyData": "client-key-data"}
    return user | {ours: tls[theirs] for theirs, ours in names.items() if tls.get(theirs)}


def _kubeconfig(server: str, trust: Mapping[str, Any], user: Mapping[str, Any]) -> str:
    document = {
        "current-context": "cluster",
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "user"}}],
        "clusters": [{"name": "cluster", "cluster": {"server": server, **trust}}],
        "users": [{"name": "user", "user": dict(user)}],
    }
    return orjson.dumps(document).decode()
