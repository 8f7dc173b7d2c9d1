"""Checks of the agents' registrations on the hub: which wait, expired or were refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from datetime import UTC, datetime
from typing import Final

from fleetbus.agents.records import AgentRecord, read_record
from fleetbus.clusters.info import ClusterAccess
from fleetbus.clusters.leaving import NAMESPACE
from fleetbus.clusters.membership import AGENT_LABEL, JOINED_LABEL
from fleetbus.clusters.providers.cluster import SECRETS
from fleetbus.errors import ConfigError, Forbidden, KubeError
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.json_fields import string
from fleetbus.process.findings import Finding, error, ok, warning

_SELECTOR: Final = f"{AGENT_LABEL}=true"
_ABOUT: Final = "registration of"


async def check_registrations(
    hub: KubeClient, access: Mapping[str, ClusterAccess], namespaces: Collection[str]
) -> AsyncIterator[Finding]:
    """Check the records of agents, as far as this user may read them.

    Args:
        hub: the client of the hub.
        access: by cluster of the registry, the way to it.
        namespaces: those of the kubeconfig Secrets.
    """
    with_agents = {name for name, way in access.items() if way is ClusterAccess.AGENT}
    try:
        secrets = await _list(hub, namespaces)
    except KubeError as e:
        if with_agents:
            advice = "run doctor as a user who may list Secrets in the namespace of clusters"
            yield warning("registrations", f"those of agents were not checked: {e}", advice)
        return
    by_cluster = {string(each, "metadata", "labels", JOINED_LABEL): each for each in secrets}
    for cluster in sorted({*with_agents, *by_cluster}):
        if (secret := by_cluster.get(cluster)) is None:
            text = "none by `fleetbus join --agent`: the agent has credentials from elsewhere, or,"
            yield ok(f"{_ABOUT} {cluster}", f"{text} as in a development fleet, needs none")
        elif cluster not in with_agents:
            yield _left_over(cluster, secret)
        else:
            yield _check(cluster, secret, datetime.now(UTC))


async def _list(hub: KubeClient, namespaces: Collection[str]) -> list[Object]:
    """The records; those of the usual namespaces for a user who may not list all Secrets."""
    try:
        return await hub.list(SECRETS, label_selector=_SELECTOR)
    except Forbidden:
        return [
            secret
            for namespace in sorted({NAMESPACE, *namespaces} - {""})
            for secret in await hub.list(SECRETS, namespace, label_selector=_SELECTOR)
        ]


def _place(secret: Object) -> tuple[str, str]:
    return string(secret, "metadata", "namespace"), string(secret, "metadata", "name")


def _left_over(cluster: str, secret: Object) -> Finding:
    namespace, name = _place(secret)
    text = "the cluster is not reached through an agent, but one on record can still log in"
    advice = f"`kubectl -n {namespace} delete secret {name}` revokes it"
    return warning(f"{_ABOUT} {cluster}", text, advice)


def _check(cluster: str, secret: Object, now: datetime) -> Finding:
    about, join = f"{_ABOUT} {cluster}", f"`fleetbus join {cluster} --agent`"
    try:
        record = read_record(secret)
    except ConfigError as e:
        namespace, name = _place(secret)
        again = f"`kubectl -n {namespace} delete secret {name}`, then {join}"
        return error(about, str(e), f"{again} and apply what it prints in {cluster}")
    # With an nkey that counts the agent works meanwhile.
    report = warning if record.key else error
    if record.pending:
        return report(about, _pending(record), f"`fleetbus clusters accept {cluster}`")
    if record.may_register(now):
        return _joining(about, record, f"{join} prints it anew")
    if record.refused:
        text = f"refused at {record.refused_at}: {record.refused}"
        return report(
            about, text, f"the log of the agent in {cluster} has more; {join} starts anew"
        )
    if not record.key:
        text = "no agent has registered"
        if record.one_time:
            text += f" before the one-time nkey expired at {record.expires}"
        return error(about, text, f"{join}, and apply what it prints in {cluster}")
    return ok(about, f"its agent has an nkey since {record.changed or 'an unknown time'}")


def _joining(about: str, record: AgentRecord, again: str) -> Finding:
    text = f"no agent has registered yet; the one-time nkey is valid until {record.expires}"
    if record.key:
        return ok(about, f"{text}, and the agent of before works")
    return warning(about, text, f"apply what the join has printed in {record.cluster}; {again}")


def _pending(record: AgentRecord) -> str:
    return (
        f"waits for acceptance since {record.changed or 'an unknown time'}: agent"
        f" {record.instance or 'unnamed'}, in the cluster whose kube-system has UID"
        f" {record.uid or 'unknown'}"
    )
