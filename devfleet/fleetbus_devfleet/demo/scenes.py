"""The scenes of the demo, in their order."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import yaml
from rich.markup import escape

from fleetbus_devfleet.demo.behind_agent import AgentScene
from fleetbus_devfleet.demo.census import HUB_NAMESPACE, NAME, NAMESPACE, ORDERS
from fleetbus_devfleet.demo.checks import Checks
from fleetbus_devfleet.demo.narrator import ClaimError, spell
from fleetbus_devfleet.demo.past import PastScene
from fleetbus_devfleet.demo.stage import (
    CONFIGMAPS,
    CUSTOMIZED,
    DEPLOYMENTS,
    IMAGE,
    IMAGE_IN_TEMPLATE,
    IMAGE_PATH,
    MANIFEST,
    MCR,
    NEXT_IMAGE,
    PODS,
    SOON,
    WEB,
    Stage,
    image_of,
    replicas_of,
    wanted_replicas,
)
from fleetbus_devfleet.demo.stopwatch import Latency, Stopwatch
from fleetbus_devfleet.stack.plan import watcher_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus_devfleet.demo.witness import Seen

_DELETED_UNSEEN, _MADE_UNSEEN, _MADE_AGAIN = 8, 3, 1
_ORDERS = 12
_EVENTS_SHOWN = 12
_WRONG_IMAGE = "nginx:latest"
_VERB_STYLES = {"added": "green", "deleted": "red", "modified": "yellow", "listed": "blue"}


class Scenes:
    """The scenes; each raises ClaimError when something it claims does not hold.

    Args:
        stage: the running stack, its witness and the narrator.
        timed: how many orders are timed.
    """

    def __init__(self, stage: Stage, *, timed: int) -> None:
        self._stage = stage
        self._timed = timed
        self._witness = stage.witness
        self._tell = stage.tell
        self._check = Checks(stage)

    async def play(self) -> list[Latency]:
        """All scenes; answers what was timed."""
        await self.show_clusters()
        await self.distribute()
        drift = await self.change()
        await self.reconcile()
        await self.query()
        await self.follow_events()
        latencies = await self.time_changes()
        await self.crash_a_watcher()
        await AgentScene(self._stage).play()
        await PastScene(self._stage).play()
        await self.clean_up()
        return [*latencies, drift]

    async def show_clusters(self) -> None:
        """The clusters and how fresh the view of each is."""
        self._tell.scene(
            "The clusters",
            "One watcher per cluster has listed it and follows every change from there on.",
        )
        await self._tell.prove(
            "every cluster is connected and completely known", self._check.clusters, within=SOON
        )
        self._tell.table(
            ("CLUSTER", "ROLE", "REGION", "VERSION", "RESOURCES", "CONNECTED"),
            [_cluster_row(cluster) for cluster in await self._witness.api.clusters()],
        )

    async def distribute(self) -> None:
        """One object on the hub becomes a Deployment in each member cluster."""
        self._tell.scene(
            "One object, every cluster",
            "This MultiClusterResource on the hub puts a Deployment into every cluster labelled "
            f"role=member. The labels and the environment differ by cluster, and {CUSTOMIZED} "
            f"gets {wanted_replicas(CUSTOMIZED)} replicas.",
        )
        text = MANIFEST.read_text(encoding="utf-8")
        self._tell.show_yaml(text)
        await self._stage.on_hub.create(MCR, yaml.safe_load(text))
        await self._tell.prove(
            "every member cluster runs its own variant, ready",
            lambda: self._check.deployments(IMAGE),
            within=SOON,
        )
        await self._tell.prove(
            "its status says Applied for each cluster", self._check.status, within=SOON
        )
        await self._show_deployments()

    async def change(self) -> Latency:
        """A change of the object rolls out; a change by hand is put back."""
        self._tell.scene(
            "Change it once, and nobody else may",
            f"The image becomes {NEXT_IMAGE} on the hub. Then somebody sets {_WRONG_IMAGE} by "
            "hand, in one cluster after the other.",
        )
        await self._stage.on_hub.patch(
            MCR, HUB_NAMESPACE, WEB, [_replaced(IMAGE_IN_TEMPLATE, NEXT_IMAGE)]
        )
        await self._tell.prove(
            f"every member cluster has rolled out {NEXT_IMAGE}",
            lambda: self._check.deployments(NEXT_IMAGE),
            within=SOON,
        )
        times = [await self._drift(cluster) for cluster in self._stage.members]
        await self._tell.prove(
            "the fleet is as the hub wants it",
            lambda: self._check.deployments(NEXT_IMAGE),
            within=SOON,
        )
        await self._show_deployments()
        return Latency("a change by hand is put back", tuple(times))

    async def reconcile(self) -> None:
        """A reconciler has read the pods of all clusters and written to the hub."""
        self._tell.scene(
            "A reconciler across clusters",
            "devfleet/fleetbus_devfleet/demo/census.py has less than 50 lines: whatever changes in "
            "the shop of any cluster, it counts Pods and orders of all and writes the ConfigMap "
            f"{HUB_NAMESPACE}/{NAME} on the hub.",
        )
        await self._tell.prove(
            "the census on the hub is what the API servers have", self._check.census, within=SOON
        )
        counts = await self._stage.census()
        self._tell.table(
            ("CLUSTER", "PODS", "ORDERS"),
            [
                (member, counts[f"{member}.pods"], counts[f"{member}.orders"])
                for member in self._stage.members
            ],
        )

    async def query(self) -> None:
        """The query API answers for the whole fleet."""
        self._tell.scene(
            "The Pods of all clusters in one table",
            "The query API answers from the snapshot; no API server is asked.",
        )
        await self._tell.prove(
            "its answer equals what the API servers have", self._check.pods, within=SOON
        )
        self._tell.table(
            ("CLUSTER", "NAMESPACE", "NAME", "STATUS", "NODE", "IMAGE"),
            [
                (
                    pod.cluster,
                    pod.obj["metadata"]["namespace"],
                    pod.obj["metadata"]["name"],
                    pod.obj["status"]["phase"],
                    pod.obj["spec"].get("nodeName", ""),
                    pod.obj["spec"]["containers"][0]["image"],
                )
                for pod in await self._witness.api.list(PODS, NAMESPACE)
            ],
        )

    async def follow_events(self) -> None:
        """A change is on its subject at once."""
        cluster = self._stage.members[0]
        self._tell.scene(
            "Live events on NATS",
            f"Any NATS client may subscribe to {self._witness.subscription} and see every change "
            f"in the shop. A Pod of {cluster} is deleted; its ReplicaSet makes a new one.",
        )
        victim = min(await self._witness.truth(PODS, [cluster]))[1]
        self._witness.events.clear()
        began = time.perf_counter()
        await self._witness.cluster(cluster).delete(PODS, NAMESPACE, victim)

        async def missing() -> str:
            return self._check.replacement(cluster, victim)

        await self._tell.prove(
            "the deletion and the replacement are on their subjects", missing, within=SOON
        )
        self._show_events(cluster, began)
        await self._tell.prove(
            "the fleet is whole again", lambda: self._check.deployments(NEXT_IMAGE), within=SOON
        )

    async def time_changes(self) -> list[Latency]:
        """Many changes, one after the other, each timed."""
        self._tell.scene(
            "How fast is that?",
            f"{self._timed} orders (ConfigMaps) are made, one after the other. The clock of each "
            "starts when the request to its API server is sent.",
        )
        latencies = await Stopwatch(self._stage).time_orders(self._timed)
        await self._tell.prove(
            f"all {self._timed} are in the query API and in the census",
            self._orders_and_census,
            within=SOON,
        )
        self._tell.table(("FROM A CHANGE UNTIL", "MEDIAN", "WORST"), latency_rows(latencies))
        return latencies

    async def crash_a_watcher(self) -> None:
        """A watcher is killed while objects are deleted and made; nothing is missed."""
        cluster, other = self._stage.members[-1], self._stage.members[0]
        watcher = watcher_of(cluster)
        self._tell.scene(
            "kill -9 of a watcher",
            f"{_ORDERS} more orders are made in {cluster}. Its watcher is killed; while nobody "
            f"watches, {_DELETED_UNSEEN} of them are deleted and {_MADE_UNSEEN} made, one under "
            "the name of a deleted one. Then the watcher is started again.",
        )
        names = [f"order-{number}" for number in range(_ORDERS)]
        for name in names:
            await self._stage.order(cluster, name)
        await self._tell.prove(
            f"the snapshot has all orders of {cluster}", self._check.orders, within=SOON
        )
        self._stage.stack.kill(watcher)
        self._tell.alarm(f"{watcher} got SIGKILL")
        gone = set(names[:_DELETED_UNSEEN])
        created = {*names[:_MADE_AGAIN], *(f"late-{n}" for n in range(_MADE_UNSEEN - _MADE_AGAIN))}
        self._witness.events.clear()
        await self._change_unseen(cluster, gone=gone, created=created)
        await self._stage.order(other, "meanwhile")
        await self._tell.prove(
            f"{other} does not notice: an order there is in the census",
            lambda: self._counted(other),
            within=SOON,
        )
        await self._tell_what_is_missed(cluster)
        await self._stage.restart(watcher)
        await self._tell_how_it_came_back(cluster, gone=gone, created=created)

    async def clean_up(self) -> None:
        """The MultiClusterResource goes, and with it what it made."""
        orders = await self._witness.truth(CONFIGMAPS, self._stage.members, ORDERS)
        self._tell.scene(
            "Delete one object, and the fleet is clean",
            "The MultiClusterResource goes when no cluster has anything left of it. What it did "
            f"not make stays: {len(orders)} orders.",
        )
        await self._stage.on_hub.delete(MCR, HUB_NAMESPACE, WEB)
        await self._tell.prove(
            "no cluster has its Deployment, a ReplicaSet or a Pod",
            self._check.left_behind,
            within=SOON,
        )
        await self._tell.prove(
            "the MultiClusterResource is gone", self._check.resource_gone, within=SOON
        )

        async def untouched() -> str:
            left = await self._witness.truth(CONFIGMAPS, self._stage.members, ORDERS)
            return "" if left == orders else f"{len(left)} orders are left"

        await self._tell.prove(f"all {len(orders)} orders are untouched", untouched, within=SOON)
        await self._tell.prove(
            "the query API and the census agree", self._pods_and_census, within=SOON
        )

    # --- steps of scenes ------------------------------------------------------------------------

    async def _drift(self, cluster: str) -> float:
        """Change a Deployment by hand; answers the seconds until it is put back."""
        began = time.perf_counter()
        await self._witness.cluster(cluster).patch(
            DEPLOYMENTS, NAMESPACE, WEB, [_replaced(IMAGE_PATH, _WRONG_IMAGE)]
        )
        await self._tell.prove(
            f"the Deployment of {cluster} is put back to {NEXT_IMAGE}",
            lambda: self._check.image(cluster, NEXT_IMAGE),
            within=SOON,
        )
        return time.perf_counter() - began

    async def _show_deployments(self) -> None:
        deployments = {
            member: await self._stage.deployment(member) for member in self._stage.members
        }
        self._tell.table(
            ("CLUSTER", "DEPLOYMENT", "READY", "LABEL REGION", "IMAGE"),
            [
                (
                    cluster,
                    f"{NAMESPACE}/{WEB}",
                    replicas_of(deployment),
                    deployment["metadata"]["labels"]["region"],
                    image_of(deployment),
                )
                for cluster, deployment in deployments.items()
                if deployment is not None
            ],
        )

    def _show_events(self, cluster: str, began: float) -> None:
        of_pods = [
            event
            for event in self._witness.events
            if (event.parts.cluster, event.parts.resource) == (cluster, "pods")
        ]
        self._tell.table(
            ("AFTER", "SUBJECT"),
            [_event_row(event, began) for event in of_pods[:_EVENTS_SHOWN]],
        )

    async def _change_unseen(self, cluster: str, *, gone: set[str], created: set[str]) -> None:
        for name in sorted(gone):
            await self._witness.cluster(cluster).delete(CONFIGMAPS, NAMESPACE, name)
        for name in sorted(created):
            await self._stage.order(cluster, name)

    async def _tell_what_is_missed(self, cluster: str) -> None:
        difference = await self._witness.difference(CONFIGMAPS, [cluster], ORDERS)
        if not difference:
            raise ClaimError(f"nobody watches {cluster}, and yet the snapshot is up to date")
        self._tell.say(f"of {cluster}, the snapshot is behind: {difference}")

    async def _tell_how_it_came_back(
        self, cluster: str, *, gone: set[str], created: set[str]
    ) -> None:
        await self._tell.prove(
            "the snapshot equals the API servers again", self._check.orders, within=SOON
        )

        async def unpublished() -> str:
            return self._check.published(cluster, gone=gone, created=created)

        await self._tell.prove(
            f"all {len(gone)} deletions and {len(created)} creations were published",
            unpublished,
            within=SOON,
        )
        await self._tell.prove("the census missed none of them", self._check.census, within=SOON)
        if not self._witness.seen("listed", "configmaps", cluster):
            self._tell.say("[dim]It went on from its checkpoint: no order was listed again.[/]")

    async def _counted(self, cluster: str) -> str:
        truth = len(await self._witness.truth(CONFIGMAPS, [cluster], ORDERS))
        counted = (await self._stage.census()).get(f"{cluster}.orders")
        return "" if counted == str(truth) else f"counted {counted}, there are {truth}"

    async def _orders_and_census(self) -> str:
        return await self._check.orders() or await self._check.census()

    async def _pods_and_census(self) -> str:
        return await self._check.pods() or await self._check.census()


def latency_rows(latencies: Sequence[Latency]) -> list[tuple[str, str, str]]:
    """The rows of a table of latencies."""
    return [(latency.name, spell(latency.median), spell(latency.worst)) for latency in latencies]


def _replaced(path: str, value: str) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


def _event_row(event: Seen, began: float) -> tuple[str, str]:
    verb = event.parts.verb
    place = escape(event.subject.removesuffix(verb))
    return spell(timedelta(seconds=event.at - began)), f"{place}[{_VERB_STYLES[verb]}]{verb}[/]"


def _cluster_row(cluster: dict[str, Any]) -> tuple[str, ...]:
    return (
        cluster["name"],
        cluster["labels"].get("role", ""),
        cluster["labels"].get("region", ""),
        cluster["serverVersion"],
        f"{cluster['completeResourceCount']} of {cluster['resourceCount']}",
        "[green]yes[/]" if cluster["connected"] else "[red]no[/]",
    )
