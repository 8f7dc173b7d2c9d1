"""Join and unjoin: how a cluster becomes a member, and how it leaves.

Joining writes a Secret with the kubeconfig, then the Cluster that names it. Unjoining writes the
leave record first, then deletes both: with the record the objects on the absent cluster are
released, without it they are held (rule D7). All requests use the caller's rights on the hub.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, cast

from fleetbus.clusters.access import read_kubeconfig
from fleetbus.clusters.info import ClusterAccess
from fleetbus.clusters.leaving import NAMESPACE, drop_record, write_record
from fleetbus.clusters.providers.cluster import CLUSTERS, JOINED_UID, SECRETS, recorded_uid
from fleetbus.errors import AlreadyExists, ConfigError, KubeError
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.config import (
    KubeConfig,
    by_context,
    check_access,
    current_context,
    upload_refusal,
)
from fleetbus.kube.json_fields import string
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import check_cluster

JOINED_LABEL: Final = "fleetbus.dev/joined-cluster"
"""On a Secret that a join wrote: unjoining deletes no others."""
AGENT_LABEL: Final = "fleetbus.dev/agent"
"""On the record of a cluster's agent, with the value `true`: which nkeys may log in."""
KUBECONFIG_LABELS: Final = {"fleetbus.dev/kubeconfig": "true"}
"""On a Secret with the kubeconfig of a Cluster."""
WATCHER_ACCESS: Final = "fleetbus.dev/watcher-secret"
"""Annotation of a Cluster: namespace/name of the kubeconfig of a watcher of its own."""
_MANAGER: Final = "fleetbus-join"
_ANSWERS_WITHIN: Final = timedelta(seconds=8)


class NotPossible(ConfigError):
    """A join or unjoin is not possible; the message says why, and nothing was written."""


class AlreadyJoined(NotPossible):
    """The fleet has a cluster of this name."""


class NotJoined(NotPossible):
    """The fleet has no cluster of this name."""


async def join(
    hub: KubeClient,
    name: str,
    config: KubeConfig,
    *,
    namespace: str = NAMESPACE,
    labels: Mapping[str, str] | None = None,
    insecure: bool = False,
    http: bool = False,
    check: bool = True,
) -> None:
    """Make a cluster a member of the fleet.

    Args:
        hub: the hub, with the rights of the caller.
        name: the cluster's name in the fleet.
        config: access to it; only its current context is kept.
        namespace: the namespace of fleetbus on the hub.
        labels: for placement to select on.
        insecure: do not verify the API server's certificate.
        http: allow plain http.
        check: contact the cluster first, so that a wrong address or credential fails at once.

    Raises:
        NotPossible: the name or the kubeconfig is unusable, or the cluster does not answer.
        AlreadyJoined: the name is taken, or the cluster is a member under another one.
        KubeError: the hub refused.
    """
    usable_config = _usable(name, replace(config, insecure=insecure, http=http))
    cluster = await hub.get(CLUSTERS, "", name)
    if cluster is not None and has_agent(cluster):
        await _leave_agent(hub, cluster, namespace, usable_config, labels, check=check)
        return
    if cluster is not None:
        secret = (
            "/".join(filter(None, place_of_secret(cluster))) or "of its spec.kubeconfigSecretRef"
        )
        raise AlreadyJoined(
            f"the name {name!r} is taken: a cluster of the fleet has it; choose another name, or,"
            f" to change that one's credentials, update the Secret {secret}"
        )
    uid = await _new_uid(hub, name, usable_config) if check else ""
    secret = _secret(name, namespace, usable_config)
    await _write(hub, secret, _cluster(name, secret, labels, usable_config, uid))
    # After the Cluster: the other way round an absent cluster would be held for a moment.
    await drop_record(hub, name, namespace)


def agent_record_name(name: str) -> str:
    """The name of the Secret with the record of a cluster's agent."""
    return f"{check_cluster(name)}-agent"


def has_agent(cluster: Object) -> bool:
    """Whether a Cluster is reached through its agent."""
    return string(cluster, "spec", "access") == ClusterAccess.AGENT


async def _leave_agent(
    hub: KubeClient,
    cluster: Object,
    namespace: str,
    config: KubeConfig,
    labels: Mapping[str, str] | None,
    *,
    check: bool,
) -> None:
    """Change a member with an agent to direct access; its objects stay, and the agent is revoked.

    Another cluster than the member is refused: on it everything would look deleted (rule W13).
    """
    name = str(cluster["metadata"]["name"])
    uid = await _ask(name, config) if check else ""
    known = recorded_uid(cluster)
    if uid and known and uid != known:
        raise NotPossible(
            f"{config.source} leads to another cluster than {name!r}: its kube-system has the UID"
            f" {uid}, not {known}; to put another cluster in its place: fleetbus unjoin {name},"
            " then join"
        )
    secret = _secret(name, namespace, config)
    await _put_secret(hub, namespace, secret)
    direct = _cluster(name, secret, labels, config, uid)
    spec: Object = {**direct["spec"], "access": str(ClusterAccess.DIRECT)}
    patch: Object = {"metadata": {"labels": dict(labels or {})}, "spec": spec}
    await hub.patch(CLUSTERS, "", name, patch, field_manager=_MANAGER)
    await _revoke_agent(hub, name, namespace)


async def is_hub(hub: KubeClient, cluster: Object) -> bool:
    """Whether a Cluster is the hub itself; one that does not answer counts as another."""
    return await _is_hub(hub, await _secret_at(hub, place_of_secret(cluster)))


async def delete_kubeconfig(hub: KubeClient, cluster: Object) -> None:
    """Delete the kubeconfigs that a join wrote for a Cluster, and no others."""
    secrets = [await _secret_at(hub, place) for place in places_of_secrets(cluster)]
    await _delete_joined(hub, str(cluster["metadata"]["name"]), secrets)


async def _write(hub: KubeClient, secret: Object, cluster: Object) -> None:
    """Write both; without the Cluster the Secret is removed, so that no credential is left over."""
    namespace, name = (secret["metadata"][key] for key in ("namespace", "name"))
    await _put_secret(hub, namespace, secret)
    try:
        await hub.create(CLUSTERS, cluster, field_manager=_MANAGER)
    except AlreadyExists as e:
        raise AlreadyJoined(
            f"the name {cluster['metadata']['name']!r} was taken meanwhile: somebody else joined it"
        ) from e
    except KubeError:
        with suppress(KubeError):
            await hub.delete(SECRETS, namespace, name)
        raise


async def unjoin(hub: KubeClient, name: str, *, namespace: str = NAMESPACE) -> None:
    """Let a cluster leave the fleet: its objects stay there, released and no longer managed.

    Args:
        hub: the hub, with the rights of the caller.
        name: the cluster's name in the fleet.
        namespace: the namespace of fleetbus on the hub.

    Raises:
        NotJoined: there is no such cluster.
        NotPossible: it is the hub.
        KubeError: the hub refused; finished steps stay done, and the call can be repeated.
    """
    cluster = await hub.get(CLUSTERS, "", name)
    if cluster is None:
        if not await _delete_left_secrets(hub, name, namespace):
            raise NotJoined(f"cluster {name!r} is not in the fleet")
        return
    secret, of_watcher = [await _secret_at(hub, place) for place in places_of_secrets(cluster)]
    if await _is_hub(hub, secret):
        raise NotPossible(f"cluster {name!r} is the hub of the fleet and cannot leave it")
    await write_record(hub, cluster, namespace, _MANAGER)
    await _revoke_agent(hub, name, namespace)
    # Before the Cluster, which says where it is: a repeated call finds it.
    await _delete_joined(hub, name, [of_watcher])
    await hub.delete(CLUSTERS, "", name, uid=cluster["metadata"]["uid"])
    await _delete_joined(hub, name, [secret])


# --- joining ------------------------------------------------------------------------------------


def _usable(name: str, config: KubeConfig) -> KubeConfig:
    """The part of a kubeconfig that is kept."""
    try:
        check_cluster(name)
    except InvalidName as e:
        raise NotPossible(str(e)) from e
    context = current_context(config)
    parts = by_context(config)
    if context not in parts:
        named = f"context {context!r} is not one of" if context else "no current-context; name one:"
        raise NotPossible(f"{config.source}: {named} {', '.join(parts) or 'none'}")
    usable = replace(parts[context], own=False)  # as the processes of the fleet see it
    try:
        check_access(usable)
    except ConfigError as e:
        raise NotPossible(str(e)) from e
    if problem := upload_refusal(usable):
        raise NotPossible(
            f"{problem}: a member's kubeconfig is used inside the hub, so it must contain its"
            " credentials (`kubectl config view --minify --flatten`, or a ServiceAccount's token)"
        )
    return usable


async def _new_uid(hub: KubeClient, name: str, config: KubeConfig) -> str:
    """The UID of a cluster that answers and is not a member yet."""
    uid = await _ask(name, config)
    if other := await member_with(hub, uid):
        raise AlreadyJoined(
            f"this cluster is already in the fleet as {other!r}, and a cluster has only one name;"
            f" to rename it: fleetbus unjoin {other}, then join"
        )
    return uid


async def member_with(hub: KubeClient, uid: str) -> str:
    """The name of the member whose namespace kube-system has this UID; empty if none has.

    Raises:
        KubeError: the hub refused, or did not answer.
    """
    for cluster in await hub.list(CLUSTERS):
        if recorded_uid(cluster) == uid:
            return str(cluster["metadata"]["name"])
    return ""


async def _ask(name: str, config: KubeConfig) -> str:
    """The UID of the cluster's namespace kube-system."""
    try:
        async with (
            asyncio.timeout(_ANSWERS_WITHIN.total_seconds()),
            KubeClient(config) as client,
        ):
            return await client.kube_system_uid()
    except TimeoutError as e:
        raise NotPossible(
            f"cluster {name!r} does not answer within {_ANSWERS_WITHIN.total_seconds():g} s"
        ) from e
    except (KubeError, ConfigError) as e:
        raise NotPossible(f"cluster {name!r} cannot be used: {e}") from e


def _secret(name: str, namespace: str, config: KubeConfig) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": f"{name}-kubeconfig",
            "namespace": namespace,
            "labels": {**KUBECONFIG_LABELS, JOINED_LABEL: name},
        },
        "stringData": {"kubeconfig": config.document},
    }


async def _put_secret(hub: KubeClient, namespace: str, secret: Object) -> None:
    """Write the Secret; one of an interrupted join is replaced, any other is not."""
    metadata: dict[str, Any] = secret["metadata"]
    stored = await hub.get(SECRETS, namespace, metadata["name"])
    if stored is None:
        await hub.create(SECRETS, secret, field_manager=_MANAGER)
        return
    if _label(stored) != metadata["labels"][JOINED_LABEL]:
        raise NotPossible(
            f"Secret {namespace}/{metadata['name']} exists and was not written by a join:"
            " delete it, if nothing else needs it, or choose another name"
        )
    await hub.delete(SECRETS, namespace, metadata["name"], uid=stored["metadata"]["uid"])
    await hub.create(SECRETS, secret, field_manager=_MANAGER)


def _label(secret: Object) -> str:
    """The cluster for which a join wrote the Secret; empty for others."""
    labels = cast("dict[str, str]", secret["metadata"].get("labels") or {})
    return labels.get(JOINED_LABEL, "")


def _cluster(
    name: str, secret: Object, labels: Mapping[str, str] | None, config: KubeConfig, uid: str
) -> Object:
    place = {key: secret["metadata"][key] for key in ("namespace", "name")}
    spec: Object = {"kubeconfigSecretRef": place}
    if config.insecure:
        spec["insecureSkipTLSVerify"] = True
    if config.http:
        spec["allowHTTP"] = True
    return {
        "apiVersion": "fleetbus.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {
            "name": name,
            "labels": dict(labels or {}),
            "annotations": {JOINED_UID: uid} if uid else {},
        },
        "spec": spec,
    }


# --- leaving ------------------------------------------------------------------------------------


def place_of_secret(cluster: Object) -> tuple[str, str]:
    """Namespace and name of a Cluster's kubeconfig Secret; empty where it says nothing."""
    spec = cast("dict[str, Any]", cluster.get("spec") or {})
    reference = cast("dict[str, Any]", spec.get("kubeconfigSecretRef") or {})
    return str(reference.get("namespace") or ""), str(reference.get("name") or "")


def places_of_secrets(cluster: Object) -> list[tuple[str, str]]:
    """The Secrets of the Cluster, and of a watcher of its own."""
    marks = cast("dict[str, Any]", cluster["metadata"].get("annotations") or {})
    namespace, _, name = str(marks.get(WATCHER_ACCESS) or "").partition("/")
    return [place_of_secret(cluster), (namespace, name)]


async def _secret_at(hub: KubeClient, place: tuple[str, str]) -> Object | None:
    return await hub.get(SECRETS, *place) if all(place) else None


async def _delete_left_secrets(hub: KubeClient, name: str, namespace: str) -> bool:
    """Delete the Secrets that an interrupted unjoin left; False if there are none."""
    left = await hub.list(SECRETS, namespace, label_selector=f"{JOINED_LABEL}={name}")
    await _delete_joined(hub, name, left)
    return bool(left)


async def _revoke_agent(hub: KubeClient, name: str, namespace: str) -> None:
    """Delete the record of the cluster's agent: its connections end at once."""
    # By its name: whoever unjoins may read single Secrets, and need not list them.
    record = await hub.get(SECRETS, namespace, agent_record_name(name))
    await _delete_joined(hub, name, [record])


async def _delete_joined(hub: KubeClient, name: str, secrets: Iterable[Object | None]) -> None:
    """Delete the Secrets that a join wrote for this cluster, and no others."""
    for secret in secrets:
        if secret is not None and _label(secret) == name:
            place = secret["metadata"]
            await hub.delete(SECRETS, place["namespace"], place["name"], uid=place["uid"])


async def _is_hub(hub: KubeClient, secret: Object | None) -> bool:
    """Whether the cluster is the hub itself; one that does not answer counts as another."""
    if secret is None:
        return False
    # In a thread: parsing a large kubeconfig takes long, and the query API has other callers.
    config, _ = await asyncio.to_thread(read_kubeconfig, "of the cluster", secret)
    if config is None:
        return False
    uid = await hub.kube_system_uid()
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN.total_seconds()), KubeClient(config) as client:
            return await client.kube_system_uid() == uid
    except (TimeoutError, KubeError, ConfigError):
        return False
