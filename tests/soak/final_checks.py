"""The state after a soak, when everything is repaired and the load has stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import aiohttp

from fleetbus.kube.selectors import LabelSelector
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.cluster import ClusterRedis
from fleetbus.store.connection import connect
from fleetbus.store.multiplexing import MultiplexingRedis
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import parse_resource
from soak.churn import NAMESPACE
from soak.controllers import ACCOUNTS, COPIES, LABEL, MAPS, path_of
from soak.fleet import SoakFleet
from soak.sampling import metric
from support.eventually import eventually

_COMPARED: Final = (MAPS, ACCOUNTS, "v1/namespaces", "v1/nodes")
_RECORDED: Final = {"soak-maps": MAPS, "soak-accounts": ACCOUNTS}
_POLL: Final = 2.0
_SHOWN: Final = 5
Json = dict[str, Any]


class State:
    """All objects of a kind, by cluster, as the API servers have them."""

    def __init__(self, fleet: SoakFleet, objects: dict[tuple[str, str], list[Json]]) -> None:
        self.fleet = fleet
        self._objects = objects

    @classmethod
    async def read(cls, fleet: SoakFleet) -> State:
        """Ask all API servers."""
        objects: dict[tuple[str, str], list[Json]] = {}
        for cluster, client in fleet.clients.items():
            for resource in _COMPARED:
                objects[cluster, resource] = await client.list(resource)
        hub = fleet.clusters[0]
        objects[hub, MULTI_CLUSTER_RESOURCES] = await fleet.clients[hub].list(
            MULTI_CLUSTER_RESOURCES
        )
        return cls(fleet, objects)

    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of cluster and resource."""
        return [*self._objects]

    def objects(self, cluster: str, resource: str, part: str = "") -> list[Json]:
        """The objects of a resource, or those with the label of a part of the soak."""
        return [
            obj
            for obj in self._objects[cluster, resource]
            if not part or obj["metadata"].get("labels", {}).get(LABEL) == part
        ]


async def settled(fleet: SoakFleet, within: timedelta) -> list[str]:
    """Wait until everything is as it should be; what is not, at the end of the time."""
    problems: list[str] = []

    async def is_settled() -> bool:
        await asyncio.sleep(_POLL)  # the questions are work for all API servers
        problems[:] = await _problems(fleet)
        return not problems

    with suppress(AssertionError):
        await eventually(is_settled, within)
    return [*(f"ended by itself: {name}" for name in fleet.deaths), *problems]


async def _problems(fleet: SoakFleet) -> list[str]:
    state = await State.read(fleet)
    redis = await connect(fleet.stack.redis_url)
    try:
        problems = [problem async for problem in _snapshot(state, redis)]
    finally:
        await redis.aclose()
    problems += [*_recorded(state), *_copied(state), *_distributed(state)]
    problems += [problem async for problem in _gauges(fleet)]
    return problems


async def _snapshot(state: State, redis: MultiplexingRedis | ClusterRedis) -> AsyncIterator[str]:
    """The snapshot equals the API servers, version by version."""
    reader = SnapshotReader(redis, SnapshotKeys())
    for cluster, resource in state.pairs():
        page = await reader.list(
            ListQuery(clusters=[cluster], resource=parse_resource(resource).key)
        )
        stored = {(entry.namespace, entry.name, entry.resource_version) for entry in page.entries}
        live = {_version(obj) for obj in state.objects(cluster, resource)}
        if stored != live:
            different = sorted(stored ^ live)[:_SHOWN]
            yield f"snapshot: {cluster} {resource}: {len(stored ^ live)} differ: {different}"


def _version(obj: Json) -> tuple[str, str, str]:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"], metadata["resourceVersion"]


def _recorded(state: State) -> Iterator[str]:
    """Every controller has run for the last state of every object, and for those that went."""
    for recorder, resource in _RECORDED.items():
        for cluster in state.fleet.clusters:
            folder = path_of(state.fleet.records, recorder, cluster, "")
            files = [f for f in folder.glob("*") if f.name[0] != "."] if folder.exists() else []
            seen = {file.name: file.read_text() for file in files}
            live = {
                obj["metadata"]["name"]: obj["metadata"]["resourceVersion"]
                for obj in state.objects(cluster, resource, "source")
            }
            if cluster == state.fleet.guest:  # nobody runs for what goes with its cluster
                seen = {name: version for name, version in seen.items() if name in live}
            wrong = sorted(n for n in {*seen, *live} if seen.get(n) != live.get(n))
            for name in wrong[:_SHOWN]:
                yield (
                    f"{recorder}: {cluster} {name}, one of {len(wrong)}: ran for"
                    f" {seen.get(name, 'its end')}, the API server has"
                    f" {live.get(name, 'no such object')}"
                )


def _copied(state: State) -> Iterator[str]:
    for cluster in state.fleet.clusters:
        sources = _data(state.objects(cluster, MAPS, "source"))
        copies = _data(
            obj
            for obj in state.objects(cluster, MAPS, "copy")
            if obj["metadata"]["namespace"] == COPIES
        )
        if cluster == state.fleet.guest:
            copies = {name: data for name, data in copies.items() if name in sources}
        if sources != copies:
            different = sorted({*sources, *copies}, key=lambda name: sources.get(name) is None)
            wrong = [name for name in different if sources.get(name) != copies.get(name)]
            yield f"copies: {cluster}: {len(wrong)} wrong, like {wrong[:_SHOWN]}"


def _data(objects: Iterable[Json]) -> dict[str, Json]:
    return {obj["metadata"]["name"]: obj.get("data", {}) for obj in objects}


def _distributed(state: State) -> Iterator[str]:
    """Each MultiClusterResource is on its clusters, and nothing of former ones is anywhere."""
    hub = state.fleet.clusters[0]
    desired: dict[str, dict[str, Json]] = {cluster: {} for cluster in state.fleet.clusters}
    for obj in state.objects(hub, MULTI_CLUSTER_RESOURCES):
        selector = LabelSelector.from_spec(obj["spec"]["placement"]["clusterSelector"])
        value = obj["spec"]["template"]["data"]["value"]
        for plan in state.fleet.stack.plan.clusters:
            if selector.matches(dict(plan.labels)):
                desired[plan.name][obj["metadata"]["name"]] = {"value": value, "cluster": plan.name}
    for cluster, objects in desired.items():
        live = _data(
            obj
            for obj in state.objects(cluster, MAPS, "spread")
            if obj["metadata"]["namespace"] == NAMESPACE
        )
        if live != objects:
            wrong = [n for n in {*live, *objects} if live.get(n) != objects.get(n)]
            yield f"distributed: {cluster}: {len(wrong)} wrong, like {sorted(wrong)[:_SHOWN]}"


async def _gauges(fleet: SoakFleet) -> AsyncIterator[str]:
    """No orphans, no quarantined requests, and no watch of a reader that has left."""
    zero = (
        ("distributor", "fleetbus_orphans"),
        ("reconciler", "fleetbus_queue_quarantined"),
        ("query-api", "fleetbus_query_api_watches"),
    )
    async with aiohttp.ClientSession() as session:
        for name, gauge in zero:
            try:
                value = await metric(session, fleet.health_file(name).read_text().strip(), gauge)
            except (OSError, aiohttp.ClientError) as e:
                yield f"{name}: no metrics: {e}"
                continue
            if value:
                yield f"{name}: {gauge} is {value:g}"
