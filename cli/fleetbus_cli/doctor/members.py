"""Checks of the access to the member clusters, with the credentials that the fleet uses there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import orjson

from fleetbus.agent_calls.calls import AgentCalls
from fleetbus.agent_calls.pending import NOT_CONNECTED, SERVER_UNREACHABLE, SILENT
from fleetbus.agent_calls.transport import client_through_agent
from fleetbus.clusters.access import Access, SecretReader, read_kubeconfig, read_member
from fleetbus.clusters.account_tokens import LIFETIME
from fleetbus.clusters.info import ClusterAccess, ClusterInfo
from fleetbus.clusters.member_rights import (
    NAMESPACE,
    SUBRESOURCES,
    WATCHER,
    WRITER,
    impersonation_rules,
    token_rules,
    watcher_rules,
    writer_rules,
)
from fleetbus.clusters.membership import WATCHER_ACCESS, place_of_secret
from fleetbus.clusters.mirror import Place
from fleetbus.clusters.providers.cluster import CLUSTERS, SECRETS, infos_of
from fleetbus.errors import ConfigError, FleetbusError, Forbidden, KubeError, Unreachable
from fleetbus.kube.access_reviews import Right, missing_rights, rights_of
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.impersonation import ServiceAccount
from fleetbus.kube.json_fields import mapping, string
from fleetbus.kube.requests import Call
from fleetbus.kube.resource_names import with_plural
from fleetbus.process.findings import Finding, error, ok, warning
from fleetbus_cli.bootstrap.hub_objects import IMPERSONATED, WRITTEN
from fleetbus_cli.doctor.expiry import check_kubeconfig
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import CORE, Resource, is_resource_name, parse_resource_name

_AT_ONCE: Final = 8
_WITHIN: Final = timedelta(seconds=5)
_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class Member:
    """A cluster of the registry.

    Attributes:
        watched: what its watcher reads.
        written: what the distributor and controllers may write there.
        impersonated: the accounts whose rights a MultiClusterResource may use there (rule D16).
        has_watcher: whether a watcher of its own watches it, and not the pool.
        watcher: the access of that watcher; None if there is none, or it may not be read.
        is_renewed: whether fleetbus renews the token of the writer, and of that watcher.
        namespace: of the Secret with its kubeconfig; empty for one behind an agent.
    """

    info: ClusterInfo
    watched: Sequence[Resource]
    written: Sequence[Resource]
    impersonated: Sequence[ServiceAccount]
    has_watcher: bool
    watcher: Access | None
    is_renewed: tuple[bool, bool]
    namespace: str


async def read_members(
    hub: KubeClient, watched: Mapping[str, Collection[Resource]]
) -> tuple[list[Member], list[Finding]]:
    """Read the registry: the Clusters of the hub, and the Secrets that they name.

    Args:
        hub: the client of the hub.
        watched: by cluster, what its watchers report.

    Returns:
        The members; and why others, or watchers, cannot be checked.

    Raises:
        KubeError: the hub refused, or did not answer.
    """
    clusters = {
        ("", str(cluster["metadata"]["name"])): cluster for cluster in await hub.list(CLUSTERS)
    }
    secrets, refused = await _read_secrets(hub, clusters.values())
    findings: list[Finding] = []
    for key, cluster in tuple(clusters.items()):
        if refusal := refused.get(_place_of_watcher(cluster)):
            findings.append(_unread(f"access of watcher {key[1]}", refusal))
        if refusal := refused.get(place_of_secret(cluster)):
            findings.append(_unread(f"access to {key[1]}", refusal))
            del clusters[key]
    infos, problems = infos_of(clusters, secrets, SecretReader(read_kubeconfig))
    for name, problem in sorted(problems.items()):
        findings.append(
            error(f"access to {name}", problem, "correct the Cluster, or join it again")
        )
    members = [
        _member(info, clusters["", info.name], secrets, watched.get(info.name, ()), refused)
        for info in infos
    ]
    return members, findings


def _unread(about: str, refusal: Forbidden) -> Finding:
    advice = "run doctor as a user who may read that Secret, to check this access"
    return warning(about, str(refusal), advice)


async def _read_secrets(
    hub: KubeClient, clusters: Collection[Object]
) -> tuple[dict[Place, Object], dict[Place, Forbidden]]:
    """The kubeconfig Secrets by name, because few may list all Secrets; and those not allowed.

    Raises:
        KubeError: none may be read, or the hub did not answer.
    """
    places = {place_of_secret(cluster) for cluster in clusters} | set(
        map(_place_of_watcher, clusters)
    )
    secrets: dict[Place, Object] = {}
    refused: dict[Place, Forbidden] = {}

    async def read(place: Place) -> None:
        try:
            secret = await hub.get(SECRETS, *place)
        except Forbidden as e:
            refused[place] = e
        else:
            secrets.update({place: secret} if secret else {})

    named = [place for place in places if all(place)]
    await asyncio.gather(*map(read, named))
    if refused and len(refused) == len(named):
        raise next(iter(refused.values()))
    return secrets, refused


def _member(
    info: ClusterInfo,
    cluster: Object,
    secrets: Mapping[Place, Object],
    reported: Collection[Resource],
    refused: Collection[Place],
) -> Member:
    place, cluster_secret = _place_of_watcher(cluster), secrets.get(place_of_secret(cluster))
    secret, name = secrets.get(place), "/".join(place)
    watcher: Access | None = None
    if all(place) and place not in refused:
        watcher = read_member(name, secret) if secret else (None, f"Secret {name} is missing")
    return Member(
        info=info,
        watched=sorted({*reported, *_named(info.resources)}),
        written=_named(_annotations(cluster).get(WRITTEN, "").split(",")),
        impersonated=_accounts(_annotations(cluster).get(IMPERSONATED, "")),
        has_watcher=all(place),
        watcher=watcher,
        is_renewed=(LIFETIME in _annotations(cluster_secret), LIFETIME in _annotations(secret)),
        namespace=place_of_secret(cluster)[0],
    )


def _accounts(text: str) -> list[ServiceAccount]:
    accounts: list[ServiceAccount] = []
    for entry in filter(None, text.split(",")):
        with suppress(ConfigError):  # edited by hand: the next join refuses it
            accounts.append(ServiceAccount.parse(entry))
    return accounts


def _annotations(obj: Object | None) -> dict[str, str]:
    found = mapping(obj, "metadata", "annotations")
    return {str(name): string(value) for name, value in found.items()}


def _place_of_watcher(cluster: Object) -> Place:
    """The Secret of a watcher of its own; empty for the pool."""
    namespace, _, name = _annotations(cluster).get(WATCHER_ACCESS, "").partition("/")
    return (namespace, name) if namespace and name else ("", "")


def _named(entries: Collection[Any]) -> list[Resource]:
    """Resources by the names in a list; those whose group only the cluster knows are left out."""
    resources: list[Resource] = []
    for entry in entries:
        text = entry.get("resource") if isinstance(entry, dict) else entry  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        plain, slash, last = str(cast("object", text)).strip().lower().rpartition("/")
        is_part = last in SUBRESOURCES
        full_name = plain if is_part else f"{plain}{slash}{last}"
        try:
            name = with_plural(parse_resource_name(full_name)[0])
        except InvalidName:
            continue  # the watcher reports it
        if name.group is not None and is_resource_name(name.group or CORE, name.plural):
            plural = f"{name.plural}/{last}" if is_part else name.plural
            resources.append(Resource(name.group or CORE, name.version or "v1", plural))
    return resources


def kubeconfig_namespaces(members: Iterable[Member]) -> set[str]:
    """The namespaces of the kubeconfig Secrets; clusters behind agents have none."""
    return {member.namespace for member in members if member.namespace}


async def check_members(
    members: Sequence[Member], not_checked: Iterable[Finding], calls: AgentCalls | None = None
) -> AsyncIterator[Finding]:
    """Check credentials and rights in each cluster, as the components have them.

    Args:
        members: the clusters.
        not_checked: findings about what cannot be checked.
        calls: the way to agents; None if there is no connection to NATS.
    """
    for finding in not_checked:
        yield finding
    turns = asyncio.Semaphore(_AT_ONCE)

    async def check(member: Member) -> list[Finding]:
        async with turns:
            return await _check_member(member, calls)

    for findings in await asyncio.gather(*map(check, members)):
        for finding in findings:
            yield finding


async def _check_member(member: Member, calls: AgentCalls | None) -> list[Finding]:
    info = member.info
    about, name = f"access to {info.name}", info.name
    if info.access is ClusterAccess.AGENT and not info.problem:
        return await check_agent(about, member, calls)
    if info.problem or info.config is None:
        problem = info.problem or "it has no credentials"
        return [error(about, problem, f"run `fleetbus join {name}` again")]
    rights = written_rights(member)
    components = "distributor and controllers"
    if not member.has_watcher:
        rights += rights_of(watcher_rules(member.watched))
        components += ", and the watcher pool"
    findings = await _check_access(
        about, components, info.config, rights, account=WRITER, is_renewed=member.is_renewed[0]
    )
    if member.watcher is not None:
        findings += await _check_watcher(member, member.watcher)
    return findings


def written_rights(member: Member) -> list[Right]:
    """The rights that the distributor and controllers need."""
    rights = rights_of(writer_rules(member.written))
    for account in member.impersonated:
        rights += rights_of(impersonation_rules([account.name]), account.namespace)
    return rights


async def check_agent(about: str, member: Member, calls: AgentCalls | None) -> list[Finding]:
    """Check a cluster through its agent: whether it answers, and what its account may do."""
    name = member.info.name
    if calls is None:
        advice = "correct the access to NATS first, over which agents are reached"
        return [warning(about, "its agent was not asked: NATS does not answer", advice)]
    required = written_rights(member) + rights_of(watcher_rules(member.watched))
    try:
        async with client_through_agent(calls, name) as client:
            version = await _read_version(client)
            missing = await missing_rights(client, required)
    except KubeError as e:
        return [error(about, str(e), _agent_advice(e, name))]
    advice = f"its owner decides: access.mode and access.extraRules of fleetbus-agent in {name}"
    findings = missing_findings(about, "the agent", missing, advice)
    if not missing:
        text = f"{version}, through its agent; {len(required)} rights are granted"
        findings.append(ok(about, text))
    return findings


def _agent_advice(problem: KubeError, cluster: str) -> str:
    if problem.reason == SERVER_UNREACHABLE:
        return f"the agent answers; is the API server of {cluster} running?"
    if isinstance(problem, Forbidden):
        return f"the owner of {cluster} decides: the policy of its agent, and its rights"
    if problem.reason in (NOT_CONNECTED, SILENT):
        return f"run `fleetbus-agent doctor` in {cluster}: it says what is wrong there"
    return f"see the log of the agent in {cluster}, or run `fleetbus-agent doctor` there"


async def _check_watcher(member: Member, access: Access) -> list[Finding]:
    name = member.info.name
    about = f"access of watcher {name}"
    config, problem = access
    if config is None:
        return [error(about, problem, f"run `fleetbus join {name}` again")]
    rights = rights_of(watcher_rules(member.watched))
    renewed = member.is_renewed[1]
    return await _check_access(
        about, "watcher", config, rights, account=WATCHER, is_renewed=renewed
    )


async def _check_access(
    about: str,
    component: str,
    config: KubeConfig,
    required: Sequence[Right],
    *,
    account: str,
    is_renewed: bool,
) -> list[Finding]:
    """Check one kubeconfig: when it expires, and what it may do in the cluster."""
    cluster = about.rpartition(" ")[2]
    again = f"run `fleetbus join {cluster} --bootstrap --file ADMIN-KUBECONFIG` again"
    renew = f"is the projector running? Otherwise {again}" if is_renewed else again
    findings = list(check_kubeconfig(about, config, renew, is_renewed=is_renewed))
    rights = [*required, *(rights_of(token_rules(account), NAMESPACE) if is_renewed else ())]
    try:
        async with KubeClient(config) as client:
            version = await _read_version(client)
            missing = await missing_rights(client, rights)
    except Unreachable as e:
        advice = "does it run, and does its kubeconfig have an address that works from here?"
        return [*findings, error(about, str(e), advice)]
    except (KubeError, ConfigError) as e:
        advice = f"if it refuses the credentials, {again}"
        return [*findings, error(about, str(e), advice)]
    advice = f"add it to ClusterRole {account} of that cluster, or {again}"
    findings += missing_findings(about, component, missing, advice)
    if not missing:
        findings.append(ok(about, f"{version}; {len(rights)} rights are granted"))
    return findings


def missing_findings(
    about: str, component: str, missing: Sequence[Right], advice: str
) -> list[Finding]:
    """A finding for each resource on which verbs are missing, up to a limit."""
    verbs: dict[Right, list[str]] = {}
    for right in missing:
        verbs.setdefault(right._replace(verb=""), []).append(right.verb)
    findings = [
        error(about, f"{component} may not {', '.join(sorted(each))}{right}", advice)
        for right, each in list(verbs.items())[:_SHOWN]
    ]
    if len(verbs) > _SHOWN:
        more = f"{component} lack rights on {len(verbs) - _SHOWN} more resources"
        findings.append(error(about, more, advice))
    return findings


async def _read_version(client: KubeClient) -> str:
    answer = await client.request(Call("GET", "/version", within=_WITHIN))
    try:
        return f"Kubernetes {orjson.loads(answer)['gitVersion']}"
    except (orjson.JSONDecodeError, LookupError, TypeError):
        raise KubeError(0, "InvalidAnswer", "/version is not that of an API server") from None


def unreadable(problem: FleetbusError) -> Finding:
    """Report that the registry cannot be read, so that no access was checked."""
    return warning(
        "access",
        f"the Clusters of the hub or their Secrets cannot be read: {problem}",
        "run doctor as a user who may read them, to check the access to every cluster",
    )
