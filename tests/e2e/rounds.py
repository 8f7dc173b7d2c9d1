"""The disruptions of the fleet, one round after the other, while its objects are written to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from redis.asyncio import Redis

from e2e.compare import Settled, settle
from e2e.components import Services
from e2e.planes import Plane
from e2e.subscriber import Subscriber
from e2e.writers import NAMESPACES, Writer, writing
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceState
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_watcher.settings import WatcherSettings
from support.api.conformance_client import Api, until
from support.eventually import eventually

CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP: Final = "e2e.fleetbus.dev"
WIDGETS: Final = 20
DENIED: Final = frozenset({*WatcherSettings.model_fields["deny"].default, "core/secrets"})

_SETTLE = timedelta(seconds=120)
_BEFORE = _AFTER = 4.0
_DOWN = 3.0
_CACHED = 11.0
"""For how long an API server still believes a token that it has checked, and a bit more."""


@dataclass
class Scene:
    """Everything that a round may touch."""

    planes: dict[str, Plane]
    services: Services
    writers: dict[str, Writer]
    subscriber: Subscriber
    redis: Redis
    random: random.Random

    def api(self, cluster: str) -> Api:
        return self.services.apis[cluster]

    def any_cluster(self) -> str:
        return self.random.choice(list(self.planes))

    async def settled(self) -> Settled:
        """Compare until nothing differs, or patience is over."""
        self.services.raise_if_ended()
        for plane in self.planes.values():
            plane.raise_if_ended()
        return await settle(self.services.apis, self.redis, self.subscriber, DENIED, within=_SETTLE)


Round = Callable[[Scene], Awaitable[None]]


async def nothing(scene: Scene) -> None:
    """Only writes."""
    del scene


async def kill_watchers(scene: Scene) -> None:
    """All watchers at once, one replica after the other comes back."""
    watchers = [name for cluster in scene.planes for name in scene.services.watchers_of(cluster)]
    for name in watchers:
        scene.services.kill(name)
    await asyncio.sleep(_DOWN)
    for name in scene.random.sample(watchers, len(watchers)):
        scene.services.respawn(name)
        await asyncio.sleep(scene.random.random())


async def kill_apiserver(scene: Scene) -> None:
    """One API server; it comes back without a watch cache."""
    plane = scene.planes[scene.any_cluster()]
    plane.kill("kube-apiserver")
    await asyncio.sleep(_DOWN)
    await plane.start_apiserver()


async def kill_etcd(scene: Scene) -> None:
    """One etcd under its API server."""
    plane = scene.planes[scene.any_cluster()]
    plane.kill("etcd")
    await asyncio.sleep(_DOWN)
    await plane.start_etcd()
    await asyncio.to_thread(until, plane.is_ready)


async def compact(scene: Scene) -> None:
    """Every etcd forgets its history while everybody watches."""
    for plane in scene.planes.values():
        await asyncio.to_thread(plane.compact)


async def compact_behind_watchers(scene: Scene) -> None:
    """A cluster's watchers are away while its history is lost, in etcd and in the API server."""
    cluster = scene.any_cluster()
    watchers, plane = scene.services.watchers_of(cluster), scene.planes[cluster]
    for name in watchers:
        scene.services.kill(name)
    await asyncio.sleep(_BEFORE)
    await plane.stop("kube-apiserver")
    await asyncio.to_thread(plane.compact)
    await plane.start_apiserver()
    await asyncio.sleep(_DOWN)
    for name in watchers:
        scene.services.respawn(name)


async def rotate_tokens(scene: Scene) -> None:
    """Every watcher's kubeconfig gets another token; the one of before is refused from then on."""
    for access in scene.services.access.values():
        await asyncio.to_thread(access.rotate)
    await asyncio.sleep(_CACHED)
    for plane in scene.planes.values():
        await _end_watches(plane)


async def rotate_tokens_late(scene: Scene) -> None:
    """The token of a cluster's watchers is refused; the fleet says so; then they get another."""
    cluster = scene.any_cluster()
    access = scene.services.access[cluster]
    await asyncio.to_thread(access.revoke)
    await asyncio.sleep(_CACHED)
    await _end_watches(scene.planes[cluster])
    await eventually(lambda: _is_unauthorized(scene, cluster), timedelta(seconds=60))
    await asyncio.to_thread(access.issue)


async def take_rights(scene: Scene) -> None:
    """The watchers of one cluster may do nothing any more; the fleet says so; then they may."""
    cluster = scene.any_cluster()
    access = scene.services.access[cluster]
    await asyncio.to_thread(access.forbid)
    await _end_watches(scene.planes[cluster])
    await eventually(lambda: _is_shown_failing(scene, cluster), timedelta(seconds=30))
    await asyncio.to_thread(access.allow)


async def create_definition(scene: Scene) -> None:
    """A type appears in every cluster, and objects of it."""
    for cluster in scene.planes:
        await asyncio.to_thread(_create_widgets, scene.api(cluster))


async def change_definition(scene: Scene) -> None:
    """The type is served and stored in another version, too."""
    for cluster in scene.planes:
        api = scene.api(cluster)
        spec = {"versions": [_version("v1", is_stored=False), _version("v2", is_stored=True)]}
        await asyncio.to_thread(api.merge, f"{CRDS}/widgets.{GROUP}", {"spec": spec})
        await asyncio.to_thread(_touch_widgets, api)


async def remove_definition(scene: Scene) -> None:
    """The type goes, with its objects."""
    for cluster in scene.planes:
        await asyncio.to_thread(_remove_widgets, scene.api(cluster))


async def remove_definition_behind_watchers(scene: Scene) -> None:
    """The type comes, is watched, and goes while no watcher of the cluster lives."""
    cluster = scene.any_cluster()
    watchers = scene.services.watchers_of(cluster)
    await asyncio.to_thread(_create_widgets, scene.api(cluster))
    place = (cluster, f"{GROUP}/widgets")
    await eventually(lambda: len(scene.subscriber.alive(place)) == WIDGETS, timedelta(seconds=60))
    for name in watchers:
        scene.services.kill(name)
    await asyncio.to_thread(_remove_widgets, scene.api(cluster))
    for name in watchers:
        scene.services.respawn(name)


async def delete_namespace(scene: Scene) -> None:
    """A namespace goes with all that is in it, and comes back."""
    path = f"/api/v1/namespaces/{NAMESPACES[-1]}"
    for cluster in scene.planes:
        await asyncio.to_thread(scene.api(cluster).delete, path)
    for cluster in scene.planes:
        api = scene.api(cluster)
        await asyncio.to_thread(until, lambda a=api: a.get(path).status == 404, 60.0)
        await asyncio.to_thread(scene.writers[cluster].set_up)


ROUNDS: Final[dict[str, Round]] = {
    each_round.__name__: each_round
    for each_round in (
        nothing,
        kill_watchers,
        kill_apiserver,
        kill_etcd,
        compact,
        compact_behind_watchers,
        rotate_tokens,
        rotate_tokens_late,
        take_rights,
        create_definition,
        change_definition,
        remove_definition,
        remove_definition_behind_watchers,
        delete_namespace,
    )
}


async def play(scene: Scene, play_round: Round) -> Settled:
    """One round: write, let it happen, write on, stop, and compare."""
    async with writing(scene.writers):
        await asyncio.sleep(_BEFORE)
        await play_round(scene)
        await asyncio.sleep(_AFTER)
    return await scene.settled()


async def _end_watches(plane: Plane) -> None:
    """Restart the API server in good order; whoever watches has to ask anew whether he may."""
    await plane.stop("kube-apiserver")
    await plane.start_apiserver()


async def _is_shown_failing(scene: Scene, cluster: str) -> bool:
    reader = SnapshotReader(scene.redis, SnapshotKeys())
    records = await reader.resources(cluster)
    return any(record.state is not ResourceState.SYNCED for record in records)


async def _is_unauthorized(scene: Scene, cluster: str) -> bool:
    record = await SnapshotReader(scene.redis, SnapshotKeys()).cluster(cluster)
    return record is not None and (record.connected, record.reason) == (False, "Unauthorized")


def _version(name: str, *, is_stored: bool) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "name": name,
        "served": True,
        "storage": is_stored,
        "schema": {"openAPIV3Schema": schema},
    }


def _create_widgets(api: Api) -> None:
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    versions = [_version("v1", is_stored=True)]
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": versions}
    body = {"metadata": {"name": f"widgets.{GROUP}"}, "spec": spec}
    reply = api.post(CRDS, body)
    assert reply.status == 201, reply.text
    until(lambda: api.get(f"/apis/{GROUP}/v1/widgets").status == 200)
    for number in range(WIDGETS):
        body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": f"w{number}"}}
        path = f"/apis/{GROUP}/v1/namespaces/default/widgets"
        until(lambda p=path, b=body: api.post(p, b).status in (201, 409))


def _touch_widgets(api: Api) -> None:
    path = f"/apis/{GROUP}/v2/namespaces/default/widgets"
    until(lambda: api.get(path).status == 200)
    for number in range(0, WIDGETS, 2):
        api.merge(f"{path}/w{number}", {"spec": {"touched": True}})


def _remove_widgets(api: Api) -> None:
    path = f"{CRDS}/widgets.{GROUP}"
    reply = api.delete(path)
    assert reply.status == 200, reply.text
    until(lambda: api.get(path).status == 404)
