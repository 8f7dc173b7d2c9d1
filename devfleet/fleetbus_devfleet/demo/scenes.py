"""The scenes of the demo, in their order."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from fleetbus_devfleet.demo.census import HUB_NAMESPACE, NAME, NAMESPACE
from fleetbus_devfleet.demo.witness import replicas_of
from fleetbus_devfleet.plan import watcher_of

if TYPE_CHECKING:
    from fleetbus_devfleet.demo.narrator import Narrator
    from fleetbus_devfleet.demo.witness import Witness
    from fleetbus_devfleet.stack import Stack

MANIFEST = Path(__file__).with_name("web.yaml")
_MCR = "fleetbus.dev/v1alpha1/multiclusterresources"
_DEPLOYMENTS = "apps/v1/deployments"
_PODS = "v1/pods"
_CONFIGMAPS = "v1/configmaps"
_CUSTOMIZED = "us1"
_REPLICAS, _CUSTOMIZED_REPLICAS = 2, 3
_ORDERS, _DELETED_ORDERS = 12, 8
_EVENTS_SHOWN = 6
_SOON = timedelta(seconds=15)


class Scenes:
    """The scenes; each raises ClaimError when something it claims does not hold.

    Args:
        stack: the running stack.
        witness: what the claims are checked with.
        narrator: who tells them.
    """

    def __init__(self, *, stack: Stack, witness: Witness, narrator: Narrator) -> None:
        self._stack = stack
        self._witness = witness
        self._tell = narrator
        self._hub = stack.plan.hub
        self._members = stack.plan.names[1:]

    async def play(self) -> None:
        """All scenes."""
        await self.distribute()
        await self.reconcile()
        await self.query()
        await self.follow_events()
        await self.crash_a_watcher()
        await self.clean_up()

    async def distribute(self) -> None:
        """One object on the hub becomes a Deployment in each member cluster."""
        self._tell.scene(
            "One object, every cluster",
            "A MultiClusterResource on the hub puts a Deployment into every cluster labelled "
            f"role=member; {_CUSTOMIZED} gets {_CUSTOMIZED_REPLICAS} replicas instead of "
            f"{_REPLICAS}.",
        )
        text = MANIFEST.read_text(encoding="utf-8")
        self._tell.show_yaml(text)
        await self._witness.cluster(self._hub).create(_MCR, yaml.safe_load(text))
        await self._tell.prove(
            "every cluster runs its Deployment with the replicas that it should",
            self._wrong_replicas,
            within=_SOON,
        )
        await self._tell.prove(
            "the MultiClusterResource reports it per cluster",
            self._wrong_status,
            within=_SOON,
        )

    async def reconcile(self) -> None:
        """A reconciler has read the pods of all clusters and written to the hub."""
        self._tell.scene(
            "A reconciler across clusters",
            "demo/census.py is 30 lines of Python: whenever a Pod changes in any cluster it counts "
            f"the Pods of all and writes the ConfigMap {HUB_NAMESPACE}/{NAME} on the hub.",
        )
        await self._tell.prove(
            "the census on the hub counts the Pods of every member cluster",
            self._wrong_census,
            within=_SOON,
        )
        self._tell.table(("CLUSTER", "PODS"), sorted((await self._census()).items()))

    async def query(self) -> None:
        """The query API answers for the whole fleet."""
        self._tell.scene(
            "The Pods of all clusters in one table",
            "The query API answers from the snapshot: no API server is asked.",
        )
        await self._tell.prove(
            "the answer equals what the API servers say",
            lambda: self._witness.difference(_PODS, self._members),
            within=_SOON,
        )
        pods = await self._witness.api.list(_PODS, NAMESPACE)
        self._tell.table(
            ("CLUSTER", "NAMESPACE", "NAME", "STATUS"),
            [
                (
                    pod.cluster,
                    pod.obj["metadata"]["namespace"],
                    pod.obj["metadata"]["name"],
                    pod.obj.get("status", {}).get("phase", ""),
                )
                for pod in pods
            ],
        )

    async def follow_events(self) -> None:
        """A change is on its subject at once."""
        cluster = self._members[0]
        self._tell.scene(
            "Live events on NATS",
            f"Any NATS client may subscribe to {self._witness.subscription} and sees every change; "
            f"now a Pod of {cluster} is deleted and its ReplicaSet makes a new one.",
        )
        victim = min(await self._witness.truth(_PODS, [cluster]))[1]
        self._witness.events.clear()
        await self._witness.cluster(cluster).delete(_PODS, NAMESPACE, victim)
        await self._tell.prove(
            f"the deletion of {victim} and its replacement are on their subjects",
            lambda: self._missing_replacement(cluster, victim),
            within=_SOON,
        )
        for seen in self._witness.events[:_EVENTS_SHOWN]:
            self._tell.say(f"[magenta]{seen.subject}[/]")
        await self._tell.prove("the fleet is whole again", self._wrong_replicas, within=_SOON)

    async def crash_a_watcher(self) -> None:
        """A watcher is killed while objects are deleted; nothing is missed."""
        cluster = self._members[-1]
        watcher = watcher_of(cluster)
        self._tell.scene(
            "kill -9 of a watcher",
            f"{_ORDERS} ConfigMaps are made in {cluster}. Its watcher is killed, {_DELETED_ORDERS} "
            "of them are deleted while nobody watches, and the watcher is started again.",
        )
        await self._make_orders(cluster)
        await self._tell.prove(
            "the snapshot has all of them",
            lambda: self._witness.difference(_CONFIGMAPS, [cluster]),
            within=_SOON,
        )
        self._stack.kill(watcher)
        self._tell.say(f"[red]✗[/] {watcher} got SIGKILL")
        gone = {f"order-{number}" for number in range(_DELETED_ORDERS)}
        for name in sorted(gone):
            await self._witness.cluster(cluster).delete(_CONFIGMAPS, NAMESPACE, name)
        stale = await self._witness.difference(_CONFIGMAPS, [cluster])
        self._tell.say(f"{_DELETED_ORDERS} deleted meanwhile; the snapshot is behind: {stale}")
        self._witness.events.clear()
        await self._stack.restart(watcher)
        await self._tell.prove(
            f"{watcher} is back and the snapshot equals the API server again",
            lambda: self._witness.difference(_CONFIGMAPS, [cluster]),
            within=_SOON,
        )
        await self._tell.prove(
            f"each of the {_DELETED_ORDERS} deletions was published",
            lambda: self._unpublished(cluster, gone),
            within=_SOON,
        )

    async def clean_up(self) -> None:
        """The MultiClusterResource goes, and with it what it made."""
        self._tell.scene(
            "Delete one object, and the fleet is clean",
            "Its finalizer holds the MultiClusterResource until every cluster is clean.",
        )
        hub = self._witness.cluster(self._hub)
        await hub.delete(_MCR, HUB_NAMESPACE, "web")
        await self._tell.prove(
            "no cluster has the Deployment or one of its Pods", self._left_behind, within=_SOON
        )
        await self._tell.prove(
            "the MultiClusterResource itself is gone", self._mcr_left, within=_SOON
        )
        await self._tell.prove(
            "the census counts no Pod any more, and the query API agrees",
            self._counted_after_the_end,
            within=_SOON,
        )

    # --- checks: what is wrong, or an empty text ------------------------------------------------

    def _wanted_replicas(self, cluster: str) -> int:
        return _CUSTOMIZED_REPLICAS if cluster == _CUSTOMIZED else _REPLICAS

    async def _wrong_replicas(self) -> str:
        wrong: list[str] = []
        for cluster in self._members:
            client = self._witness.cluster(cluster)
            found = replicas_of(await client.get(_DEPLOYMENTS, NAMESPACE, "web"))
            wanted = self._wanted_replicas(cluster)
            if found != f"{wanted}/{wanted}":
                wrong.append(f"{cluster}: {found} replicas ready, wanted {wanted}")
        return "; ".join(wrong)

    async def _wrong_status(self) -> str:
        found = await self._witness.cluster(self._hub).get(_MCR, HUB_NAMESPACE, "web")
        if found is None:
            return "it is not there"
        clusters = cast("list[dict[str, Any]]", found.get("status", {}).get("clusters", []))
        states = {str(entry.get("name")): str(entry.get("state")) for entry in clusters}
        wrong = [name for name in self._members if states.get(name) != "Applied"]
        return f"{wrong} are not Applied: {states}" if wrong else ""

    async def _census(self) -> dict[str, str]:
        hub = self._witness.cluster(self._hub)
        found = await hub.get(_CONFIGMAPS, HUB_NAMESPACE, NAME)
        return {} if found is None else dict(found.get("data") or {})

    async def _wrong_census(self) -> str:
        counts = await self._census()
        truth = await self._witness.truth(_PODS, self._members)
        wanted = {
            cluster: str(sum(cluster == where for where, _, _ in truth))
            for cluster in self._members
        }
        return "" if counts == wanted else f"counted {counts}, there are {wanted}"

    async def _missing_replacement(self, cluster: str, victim: str) -> str:
        if victim not in self._witness.seen("deleted", "pods", cluster):
            return "no event of the deletion"
        if not self._witness.seen("added", "pods", cluster):
            return "no event of a new Pod"
        return ""

    async def _make_orders(self, cluster: str) -> None:
        for number in range(_ORDERS):
            await self._witness.cluster(cluster).create(
                _CONFIGMAPS,
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"namespace": NAMESPACE, "name": f"order-{number}"},
                    "data": {"item": "book"},
                },
            )

    async def _unpublished(self, cluster: str, gone: set[str]) -> str:
        missing = gone - self._witness.seen("deleted", "configmaps", cluster)
        return f"no deletion published of {sorted(missing)}" if missing else ""

    async def _left_behind(self) -> str:
        left = [
            *await self._witness.truth(_DEPLOYMENTS, self._members),
            *await self._witness.truth(_PODS, self._members),
        ]
        return f"still there: {[f'{cluster}/{name}' for cluster, name, _ in left]}" if left else ""

    async def _mcr_left(self) -> str:
        found = await self._witness.cluster(self._hub).get(_MCR, HUB_NAMESPACE, "web")
        return "" if found is None else f"its status: {found.get('status')}"

    async def _counted_after_the_end(self) -> str:
        counts = await self._census()
        if any(count != "0" for count in counts.values()):
            return f"the census says {counts}"
        return await self._witness.difference(_PODS, self._members)
