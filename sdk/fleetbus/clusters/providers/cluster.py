"""Provider `cluster`: the Cluster objects of the hub and the kubeconfig Secrets they name.

Any program may create them; a changed label, Secret or spec takes effect at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from fleetbus.clusters.access import Access, SecretReader, checked, read_kubeconfig
from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.clusters.mirror import Objects, SkippedEntries, read_entries, watch_hub
from fleetbus.errors import ConfigError
from fleetbus.kube.client import Object
from fleetbus.kube.connection.config import KubeConfig, server_of
from fleetbus.kube.json_fields import labels, mapping, string
from fleetbus.kube.list_watch.reflect import WatchTarget
from fleetbus_proto.resources import parse_resource

CLUSTERS: Final = "fleetbus.dev/v1alpha1/clusters"
SECRETS: Final = "v1/secrets"
JOINED_UID: Final = "fleetbus.dev/joined-uid"
"""On a Cluster that a join created: the UID of kube-system of the cluster that answered."""
KUBECONFIG_LABEL: Final = "fleetbus.dev/kubeconfig=true"
"""Only Secrets with this label are read, so that RBAC can be limited to them."""


class ClusterProvider:
    """Clusters from the hub's Cluster objects.

    Args:
        hub: access data of the hub; None means the pod's service account.
        namespace: Secrets are read only there, so that RBAC can be limited to it (rule S7); empty
            means every namespace.
    """

    name = "cluster"

    def __init__(self, hub: KubeConfig | None, namespace: str = "") -> None:
        self._hub = hub
        self._namespace = namespace
        self._kubeconfigs = SecretReader(read_kubeconfig)
        self._skipped = SkippedEntries(self.name)

    def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield all clusters at each change of a Cluster or of a kubeconfig Secret.

        Nothing is yielded while the hub cannot be read: the last set then stays valid.
        """
        targets = [
            WatchTarget(parse_resource(CLUSTERS)),
            WatchTarget(parse_resource(SECRETS), self._namespace, label_selector=KUBECONFIG_LABEL),
        ]
        return watch_hub(self._hub, targets, self._read, self._kubeconfigs.follow)

    def _read(self, object_sets: Sequence[Objects]) -> list[ClusterInfo]:
        clusters, secrets = object_sets
        infos, reasons = infos_of(clusters, secrets, self._kubeconfigs)
        self._skipped.report(reasons)
        return self._with_hub(infos)

    def _with_hub(self, infos: list[ClusterInfo]) -> list[ClusterInfo]:
        """Mark the cluster with the hub's address; without a hub kubeconfig none is marked."""
        server = _server(self._hub)
        hub = next((info for info in infos if server and _server(info.config) == server), None)
        return [replace(info, hub=True) if info is hub else info for info in infos]


def _server(config: KubeConfig | None) -> str:
    try:
        return server_of(config).rstrip("/") if config is not None else ""
    except ConfigError:
        return ""


def infos_of(
    clusters: Objects, secrets: Objects, kubeconfigs: SecretReader
) -> tuple[list[ClusterInfo], dict[str, str]]:
    """The clusters that these objects describe; also why others cannot be read."""
    kubeconfigs.forget_all_but(secrets)
    return read_entries(
        clusters, lambda place: _info(place[1], clusters[place], secrets, kubeconfigs)
    )


def _info(name: str, cluster: Object, secrets: Objects, kubeconfigs: SecretReader) -> ClusterInfo:
    spec = mapping(cluster, "spec")
    access, problem = _way_of(spec)
    config = None
    if access is ClusterAccess.DIRECT and not problem:
        config, problem = _access(spec, secrets, kubeconfigs)
    return ClusterInfo(
        name=name,
        labels=labels(cluster),
        provider="cluster",
        config=config,
        access=access,
        problem=problem,
        resources=tuple(_entries(spec.get("resources"))),
        deny=tuple(map(str, _entries(spec["deny"]))) if spec.get("deny") is not None else None,
        suspended=bool(spec.get("suspend", False)),
        uid=recorded_uid(cluster),
    )


def recorded_uid(cluster: Object) -> str:
    """The UID of kube-system that is recorded on a Cluster; empty if there is none."""
    annotations = mapping(cluster, "metadata", "annotations")
    # The annotation is from the join; consent to another cluster changes only the status.
    return string(cluster, "status", "uid") or string(annotations, JOINED_UID)


def _entries(value: object) -> list[Any]:
    """A list as it is; a value of another type becomes one entry, to be reported."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    return [value] if value else []


def _way_of(spec: dict[str, Any]) -> tuple[ClusterAccess, str]:
    """The way to the API server, or why there is none."""
    named = spec.get("access", ClusterAccess.DIRECT)
    if named in list(ClusterAccess):
        return ClusterAccess(named), ""
    return ClusterAccess.DIRECT, f"spec.access {named!r} is neither Direct nor Agent"


def _access(spec: dict[str, Any], secrets: Objects, kubeconfigs: SecretReader) -> Access:
    reference = mapping(spec, "kubeconfigSecretRef")
    if not reference:
        return None, "spec.kubeconfigSecretRef is missing, which direct access needs"
    place = (str(reference.get("namespace") or ""), str(reference.get("name") or ""))
    secret = secrets.get(place)
    if secret is None:
        name = "/".join(place)
        return None, f"Secret {name} is missing, or lacks the label {KUBECONFIG_LABEL}"
    config, problem = kubeconfigs.read(place, secret)
    if config is None:
        return None, problem
    # Only a literal `true` turns verification off.
    insecure, http = spec.get("insecureSkipTLSVerify") is True, spec.get("allowHTTP") is True
    return checked((replace(config, insecure=insecure, http=http), ""))
