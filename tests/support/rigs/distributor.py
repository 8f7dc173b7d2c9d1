"""A distributor on real clients against emulated API servers, without bus and store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import orjson
from redis.asyncio import Redis

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.member_rights import writer_rules
from fleetbus.deletions.budget import DeletionBudget
from fleetbus.errors import ClusterNotFound
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.identity import IdentityCheck
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES, Owner
from fleetbus.reconcile import Request, Result
from fleetbus_distributor.announce.announce import Announcer
from fleetbus_distributor.hub.rollout_state import GateState
from fleetbus_distributor.rollout.advance import Finding
from fleetbus_distributor.rollout.votes import read_vote
from fleetbus_distributor.rounds.failing_pods import ExplainHealth, say_no_more
from fleetbus_distributor.rounds.missing_objects import MissingObjects
from fleetbus_distributor.rounds.reconcile import Distributor
from fleetbus_distributor.rounds.settled import SettledRounds
from fleetbus_distributor.rounds.status_pace import StatusPace
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_emulator.apiserver import ApiServers, Cluster, LoggedRequest, serve
from fleetbus_proto.distribution import DistributionEvent
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.rigs.secured_api import grant

Object = dict[str, Any]

HUB = "t4"
PENDING = Finding(GateState.PENDING)
NOWHERE = "redis://127.0.0.1:1/0"
WRITER = "system:serviceaccount:fleetbus-system:fleetbus-writer"
_TOKEN = "token-of-the-writer"
POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "multicluster-pod", "namespace": "default"},
    "spec": {
        "restartPolicy": "Always",
        "containers": [{"name": "busybox", "image": "busybox", "command": ["sleep", "3600"]}],
    },
}
CONFIG_MAP: Object = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "m", "namespace": "default"},
    "data": {"k": "v"},
}


class _Engaged:
    """One cluster of the small fleet."""

    def __init__(self, client: KubeClient) -> None:
        self.live = client


class SmallFleet:
    """The part of a fleet that the distributor uses, with real clients."""

    def __init__(self, servers: ApiServers, token: str | None = None) -> None:
        self._servers = servers
        self._token = token
        self._members: dict[str, ClusterInfo] = {}
        self._clients: dict[str, KubeClient] = {}
        self.hub = HUB
        self.is_known = True
        self.provider = "test"
        self.accepted: dict[str, str] = {}
        """The UID of kube-system that each name stands for; as it was when it joined."""

    def clusters(self) -> list[ClusterInfo]:
        return sorted(self._members.values(), key=lambda info: info.name)

    def cluster(self, name: str) -> _Engaged:
        if name not in self._members:
            raise ClusterNotFound(name)
        return _Engaged(self._clients[name])

    def join(self, name: str, **labels: str) -> None:
        config = self._config(name)
        self._members[name] = ClusterInfo(
            name=name, labels=labels, hub=name == self.hub, provider=self.provider, config=config
        )
        self.accepted.setdefault(name, self._servers.clusters[name].uid)
        if name not in self._clients:
            self._clients[name] = client = KubeClient(config)
            client.cluster = name
            client.verify_identity(IdentityCheck(name, accepted=self, read=client.kube_system_uid))

    def suspend(self, name: str, *, suspended: bool = True) -> None:
        """Suspend a cluster, or resume it."""
        self._members[name] = replace(self._members[name], suspended=suspended)

    async def uid(self, name: str) -> str:
        return self.accepted[name]

    async def aliases(self, name: str) -> tuple[str, ...]:
        config = self._members[name].config
        same = [info.name for info in self.clusters() if info.config == config]
        return tuple(alias for alias in same if alias != name)

    def rename(self, name: str, other: str) -> None:
        """Let a cluster join under another name, too."""
        self._members[other] = replace(self._members[name], name=other)
        self._clients[other] = KubeClient(self._members[name].config)

    def _config(self, name: str) -> KubeConfig:
        """The part of the servers' kubeconfig that one cluster needs."""
        kubeconfig = self._servers.kubeconfig(self._token)
        chosen = next(context for context in kubeconfig["contexts"] if context["name"] == name)
        names = {"contexts": name, "clusters": chosen["context"]["cluster"]}
        names["users"] = chosen["context"]["user"]
        parts = {
            section: [entry for entry in kubeconfig[section] if entry["name"] == chosen_name]
            for section, chosen_name in names.items()
        }
        document = {"apiVersion": "v1", "kind": "Config", "current-context": name, **parts}
        return KubeConfig(orjson.dumps(document).decode(), context=name)

    def leave(self, name: str) -> None:
        del self._members[name]

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()


class Rig:
    """A hub, members, and one distributor that is driven by hand."""

    def __init__(self, servers: ApiServers, redis: Redis, token: str | None = None) -> None:
        self.servers = servers
        self.redis = redis
        self.require_service_account = False
        self.pace = timedelta(milliseconds=1)
        """The time between two writes of a status, where there is a store."""
        self.fleet = SmallFleet(servers, token)
        self.clusters: dict[str, Cluster] = dict(servers.clusters)
        self.hub = self.clusters[HUB]
        self.later: dict[tuple[str, str], timedelta] = {}
        """Looks that were asked for: (name, cluster, "" for all) → after how long."""
        self.votes: dict[str, bytes] = {}
        """The last vote on each subject."""
        self.explain: ExplainHealth = say_no_more
        """Says more about the health of a cluster, from the next restart on."""
        self.events: list[DistributionEvent] = []
        """Events that were announced for the bus."""
        self.restart()

    async def _wake(self, owner: Owner, cluster: str, after: timedelta) -> None:
        self.later[owner.name, cluster] = after

    def restart(
        self,
        status_after: timedelta = timedelta(milliseconds=300),
        settled: timedelta = timedelta(),
    ) -> None:
        """Begin with a fresh distributor, as after a crash.

        Args:
            status_after: clusters that take longer are reported as in progress meanwhile.
            settled: for so long a round for all clusters is spared where it has nothing to do; by
                default each one asks all of them.
        """
        self.distributor = self.another_distributor(status_after, settled)

    def another_distributor(
        self, status_after: timedelta = timedelta(seconds=2), settled: timedelta = timedelta()
    ) -> Distributor:
        """A distributor of another process."""
        return Distributor(
            settings=DistributorSettings(
                status_after=status_after, require_service_account=self.require_service_account
            ),
            budget=DeletionBudget(self.redis),
            missing=MissingObjects(self.redis),
            pace=StatusPace(self.redis, self.pace),
            settled=SettledRounds(settled),
            requeue=self._wake,
            read_vote=self.read_vote,
            announce=Announcer(self._offer),
            explain=self.explain,
        )

    def _offer(self, events: Sequence[DistributionEvent], version: str) -> None:
        """Take events for the bus."""
        del version
        self.events += events

    async def read_vote(self, subject: str) -> Finding:
        return read_vote(self.votes[subject], subject) if subject in self.votes else PENDING

    def create(self, name: str = "x", namespace: str = "default", **spec: Any) -> Object:
        resource = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
        return self.hub.create(MULTI_CLUSTER_RESOURCES, resource)

    def edit(self, name: str = "x", namespace: str = "default", **spec: Any) -> None:
        """Replace parts of the spec; a part that is None goes."""
        resource = self.resource(name, namespace)
        changed = {**resource["spec"], **spec}
        resource["spec"] = {key: value for key, value in changed.items() if value is not None}
        self.hub.update(MULTI_CLUSTER_RESOURCES, resource)

    def annotate(self, key: str, value: str, name: str = "x") -> None:
        self.hub.patch(
            MULTI_CLUSTER_RESOURCES, "default", name, {"metadata": {"annotations": {key: value}}}
        )

    def resource(self, name: str = "x", namespace: str = "default") -> Object:
        obj = self.hub.get(MULTI_CLUSTER_RESOURCES, namespace, name)
        assert obj is not None
        return obj

    def exists(self, name: str = "x", namespace: str = "default") -> bool:
        return self.hub.get(MULTI_CLUSTER_RESOURCES, namespace, name) is not None

    def delete(self, name: str = "x", namespace: str = "default") -> None:
        self.hub.delete(MULTI_CLUSTER_RESOURCES, namespace, name)

    async def reconcile(self, name: str = "x", namespace: str = "default") -> Result | None:
        request = Request("distributor", HUB, namespace, name)
        return await self.distributor.reconcile(request, self.fleet)

    async def repair(self, cluster: str, name: str = "x") -> Result | None:
        request = Request("distributor-targets", cluster, "default", name)
        return await self.distributor.repair(request, self.fleet)

    async def until(self, predicate: Callable[[], object], name: str = "x") -> None:
        """Reconcile until something holds."""

        async def holds() -> bool:
            await self.reconcile(name)
            return bool(predicate())

        await eventually(holds)

    def get(self, cluster: str, resource: str, name: str, namespace: str = "default") -> Object:
        obj = self.clusters[cluster].get(resource, namespace, name)
        assert obj is not None, f"{resource} {name} is not in {cluster}"
        return obj

    def has(
        self, cluster: str, resource: str, name: str, namespace: str | None = "default"
    ) -> bool:
        return self.clusters[cluster].get(resource, namespace, name) is not None

    def states(self, name: str = "x", namespace: str = "default") -> dict[str, str]:
        """Cluster → `State` or `State/reason`."""
        entries = self.resource(name, namespace)["status"]["clusters"]
        return {
            entry["name"]: entry["state"]
            if entry["state"] == entry["reason"]
            else f"{entry['state']}/{entry['reason']}"
            for entry in entries
        }

    def entry(self, cluster: str, name: str = "x", namespace: str = "default") -> Object:
        entries = self.resource(name, namespace)["status"]["clusters"]
        return next(entry for entry in entries if entry["name"] == cluster)

    def condition(self, kind: str = "Ready", name: str = "x", namespace: str = "default") -> Object:
        conditions = self.resource(name, namespace)["status"]["conditions"]
        return next(condition for condition in conditions if condition["type"] == kind)

    def plan_hash(self, name: str = "x") -> str:
        """The hash that confirms the held deletions; "" if none is held."""
        hold: Object = self.resource(name)["status"].get("held", {})
        return str(hold.get("planHash", ""))

    def writes(self, cluster: str) -> list[LoggedRequest]:
        """The write requests that one cluster has seen."""
        reads = {"get", "list", "watch"}
        return [request for request in self.clusters[cluster].requests if request.verb not in reads]

    def all_writes(self) -> int:
        return sum(len(self.writes(name)) for name in self.clusters)


@asynccontextmanager
async def distributor_rig(
    *members: str, redis_url: str = NOWHERE, authorize: Literal["rbac"] | None = None
) -> AsyncGenerator[Rig]:
    """A hub `t4` and members (`t1`, `t2` by default), each with its own API server.

    Without a store every deletion that needs the fleet's budget is held.

    Args:
        members: their names.
        redis_url: the store.
        authorize: with "rbac" the distributor is the user `WRITER` on the members, which may only
            read which cluster answers until more is granted.
    """
    names = members or ("t1", "t2")
    redis = Redis.from_url(redis_url)
    clusters = [Cluster(name) for name in names]
    if authorize:
        clusters = [Cluster(name, authorize=authorize, tokens={_TOKEN: WRITER}) for name in names]
        for cluster in clusters:
            grant(cluster, WRITER, *writer_rules([]))
    async with redis, serve([*clusters, Cluster(HUB)], tls=bool(authorize)) as servers:
        rig = Rig(servers, redis, _TOKEN if authorize else None)
        for definition in crds():
            rig.hub.create(CRDS, definition)
        for name in (*names, HUB):
            rig.fleet.join(name)
        try:
            yield rig
        finally:
            await rig.fleet.aclose()
