"""Provider `cluster-api`: Cluster API's Clusters and the kubeconfig Secrets beside them.

A Cluster joins once its control plane is initialized and its Secret `<name>-kubeconfig` exists. Its
name is the Cluster's, prefixed with the namespace if all namespaces are read; it has the Cluster's
labels.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Final

from fleetbus.clusters.access import SecretReader, read_member
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.mirror import (
    Objects,
    Place,
    SkippedEntries,
    read_entries,
    watch_hub,
    watch_served,
)
from fleetbus.kube.client import Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.json_fields import labels, many, mapping
from fleetbus.kube.list_watch.reflect import WatchTarget
from fleetbus_proto.resources import Resource, parse_resource

_CLUSTERS: Final = "clusters.cluster.x-k8s.io"
_SECRETS: Final = "v1/secrets"
_CLUSTER_LABEL: Final = "cluster.x-k8s.io/cluster-name"
"""Set by Cluster API on every Secret of a cluster; other Secrets are not read."""
_KEY: Final = "value"


class ClusterApiProvider:
    """Clusters from Cluster API's objects on the hub.

    Args:
        hub: access data of the hub; None means the pod's service account.
        namespace: the only namespace to read; empty means all.
        label_selector: only Clusters with these labels.
    """

    name = "cluster-api"

    def __init__(
        self, hub: KubeConfig | None, *, namespace: str = "", label_selector: str = ""
    ) -> None:
        self._hub = hub
        self._namespace = namespace
        self._label_selector = label_selector
        self._kubeconfigs = SecretReader(partial(read_member, key=_KEY))
        self._skipped = SkippedEntries(self.name)

    def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield all initialized clusters at each change of one or of its Secret."""
        return watch_served(self._hub, _CLUSTERS, self._watch)

    def _watch(self, clusters: Resource) -> AsyncGenerator[list[ClusterInfo]]:
        secrets = parse_resource(_SECRETS)
        targets = [
            WatchTarget(clusters, self._namespace, label_selector=self._label_selector),
            WatchTarget(secrets, self._namespace, label_selector=_CLUSTER_LABEL),
        ]
        return watch_hub(self._hub, targets, self._read, self._kubeconfigs.follow)

    def _read(self, object_sets: Sequence[Objects]) -> list[ClusterInfo]:
        clusters, secrets = object_sets
        self._kubeconfigs.forget_all_but(secrets)
        ready = [place for place, cluster in clusters.items() if _is_initialized(cluster)]
        infos, reasons = read_entries(
            ready, lambda place: self._info(place, clusters[place], secrets)
        )
        self._skipped.report(reasons)
        return infos

    def _info(self, place: Place, cluster: Object, secrets: Objects) -> ClusterInfo:
        namespace, name = place
        secret_place = (namespace, f"{name}-kubeconfig")
        secret = secrets.get(secret_place)
        if secret is None:
            config, problem = None, f"Secret {'/'.join(secret_place)} is missing"
        else:
            config, problem = self._kubeconfigs.read(secret_place, secret)
        return ClusterInfo(
            name=name if self._namespace else f"{namespace}-{name}",
            labels=labels(cluster),
            provider=self.name,
            config=config,
            problem=problem,
        )


def _is_initialized(cluster: Object) -> bool:
    """Whether the control plane was ever initialized, as v1beta2 or v1beta1 report it."""
    status = mapping(cluster, "status")
    if mapping(status, "initialization").get("controlPlaneInitialized") is True:
        return True
    return any(
        condition.get("type") == "ControlPlaneInitialized" and condition.get("status") == "True"
        for condition in many(status, "conditions")
    )
