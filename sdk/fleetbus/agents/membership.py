"""Joins of clusters with agents: the one-time nkey, its acceptance, and the change of access.

All requests use the caller's rights on the hub, as those of `fleetbus.clusters.membership`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import AgentRecord, read_record, record_secret
from fleetbus.clusters.info import ClusterAccess
from fleetbus.clusters.leaving import NAMESPACE, drop_record
from fleetbus.clusters.membership import (
    NotPossible,
    agent_record_name,
    delete_kubeconfig,
    is_hub,
    place_of_secret,
)
from fleetbus.clusters.providers.cluster import CLUSTERS, SECRETS
from fleetbus.errors import AlreadyExists
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.json_fields import string
from fleetbus.process.clock import rfc3339
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster

EXPIRES: Final = timedelta(hours=24)
"""Time for which a one-time nkey counts, by default."""
LONGEST: Final = timedelta(days=30)
_MANAGER: Final = "fleetbus-join"


async def join_agent(
    hub: KubeClient,
    name: str,
    *,
    namespace: str = NAMESPACE,
    labels: Mapping[str, str] | None = None,
    expires: timedelta = EXPIRES,
) -> str:
    """Make a cluster a member through an agent, or give its agent another one-time nkey.

    A member with direct access changes to its agent: its objects stay, and the hub forgets its
    kubeconfig. The agent that a cluster has works until another one registers.

    Args:
        hub: the hub, with the rights of the caller.
        name: the cluster's name in the fleet.
        namespace: the namespace of fleetbus on the hub.
        labels: for placement to select on; of a member they are added.
        expires: how long the one-time nkey counts.

    Returns:
        The seed of the one-time nkey, which is stored nowhere.

    Raises:
        NotPossible: the name is unusable, or it is the hub.
        KubeError: the hub refused; the call can be repeated.
    """
    try:
        check_cluster(name)
    except InvalidName as e:
        raise NotPossible(str(e)) from e
    cluster = await hub.get(CLUSTERS, "", name)
    if cluster is not None and await is_hub(hub, cluster):
        raise NotPossible(f"cluster {name!r} is the hub of the fleet, and needs no agent")
    seed = make_seed()
    end = rfc3339(datetime.now(UTC) + expires, timespec="seconds")
    await _offer(hub, namespace, name, public_key(seed), end)
    await _use_agent(hub, name, cluster, labels or {})
    if cluster is not None and all(place_of_secret(cluster)):
        await delete_kubeconfig(hub, cluster)
    await drop_record(hub, name, namespace)
    return seed


async def accept_agent(
    hub: KubeClient, name: str, namespace: str = NAMESPACE
) -> AgentRecord | None:
    """Accept the agent that waits for it; returns its record, or None if none waits.

    Raises:
        ConfigError: the record is damaged.
        KubeError: the hub refused.
    """
    secret = await hub.get(SECRETS, namespace, agent_record_name(name))
    if secret is None or not (record := read_record(secret)).pending:
        return None
    await _patch(hub, secret, record.accepted())
    return record


async def _offer(hub: KubeClient, namespace: str, name: str, one_time: str, expires: str) -> None:
    """Write the one-time nkey into the record; the nkeys of an agent that works stay."""
    secret = await hub.get(SECRETS, namespace, agent_record_name(name))
    if secret is None:
        record = AgentRecord(cluster=name, one_time=one_time, expires=expires)
        await hub.create(SECRETS, record_secret(record, namespace), field_manager=_MANAGER)
        return
    record = read_record(secret).changed_to(one_time=one_time, expires=expires, pending="")
    await _patch(hub, secret, record)


async def _use_agent(
    hub: KubeClient, name: str, cluster: Object | None, labels: Mapping[str, str]
) -> None:
    spec: Object = {"access": str(ClusterAccess.AGENT)}
    metadata: Object = {"labels": dict(labels)}
    if cluster is None:
        obj: Object = {"apiVersion": "fleetbus.dev/v1alpha1", "kind": "Cluster"}
        obj |= {"metadata": {"name": name, **metadata}, "spec": spec}
        try:
            await hub.create(CLUSTERS, obj, field_manager=_MANAGER)
        except AlreadyExists as e:
            raise NotPossible(f"the name {name!r} was taken meanwhile: repeat the join") from e
        return
    spec["kubeconfigSecretRef"] = None
    await hub.patch(
        CLUSTERS, "", name, {"metadata": metadata, "spec": spec}, field_manager=_MANAGER
    )


async def _patch(hub: KubeClient, secret: Object, record: AgentRecord) -> None:
    namespace, name = (string(secret, "metadata", key) for key in ("namespace", "name"))
    version = string(secret, "metadata", "resourceVersion")
    patch: Object = {"metadata": {"resourceVersion": version}, "data": record.data()}
    await hub.patch(SECRETS, namespace, name, patch, field_manager=_MANAGER)
