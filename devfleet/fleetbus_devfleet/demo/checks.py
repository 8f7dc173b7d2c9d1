"""The demo's checks: each answers what is wrong, or an empty text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fleetbus_devfleet.demo.census import HUB_NAMESPACE, ORDERS
from fleetbus_devfleet.demo.stage import (
    CONFIGMAPS,
    DEPLOYMENTS,
    MCR,
    PODS,
    REPLICASETS,
    WEB,
    Stage,
    image_of,
    replicas_of,
    wanted_replicas,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet


class Checks:
    """Compares what fleetbus did and says with the API servers.

    Args:
        stage: the running stack and its witness.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._witness = stage.witness

    async def clusters(self) -> str:
        """Every cluster is connected and completely known, with the version that it has."""
        by_name = {cluster["name"]: cluster for cluster in await self._witness.api.clusters()}
        wrong: list[str] = []
        for name in self._stage.stack.plan.names:
            cluster = by_name.get(name)
            if cluster is None:
                wrong.append(f"{name} is not known")
            elif not cluster["complete"]:
                wrong.append(f"{name} is not complete: {cluster['reason'] or cluster['message']}")
            elif cluster["serverVersion"] != await self._version(name):
                wrong.append(f"{name} has another version than {cluster['serverVersion']!r}")
        return "; ".join(wrong)

    async def _version(self, cluster: str) -> object:
        return (await self._witness.cluster(cluster).get_json("/version")).get("gitVersion")

    async def deployments(self, image: str) -> str:
        """Every member cluster has its own variant, rolled out and ready, and no other Pods."""
        wrong: list[str] = []
        for cluster in self._stage.members:
            problem = self._unready(cluster, await self._stage.deployment(cluster), image)
            pods = await self._witness.truth(PODS, [cluster])
            if not problem and len(pods) != wanted_replicas(cluster):
                problem = f"{len(pods)} Pods"
            if problem:
                wrong.append(f"{cluster}: {problem}")
        return "; ".join(wrong)

    def _unready(self, cluster: str, deployment: dict[str, Any] | None, image: str) -> str:
        replicas = wanted_replicas(cluster)
        if deployment is None:
            return "no Deployment"
        if deployment["metadata"]["labels"].get("region") != self._stage.region_of(cluster):
            return f"labels {deployment['metadata']['labels']}"
        if image_of(deployment) != image:
            return f"image {image_of(deployment)}"
        if deployment["spec"]["replicas"] != replicas:
            return f"{deployment['spec']['replicas']} replicas wanted by it"
        status = cast("dict[str, Any]", deployment.get("status") or {})
        is_current = status.get("observedGeneration") == deployment["metadata"]["generation"]
        counts = [status.get(f"{kind}eplicas", 0) for kind in ("r", "updatedR", "readyR")]
        if not is_current or counts != [replicas] * 3:
            return f"{replicas_of(deployment)} ready, {status.get('updatedReplicas', 0)} updated"
        return ""

    async def image(self, cluster: str, tag: str) -> str:
        """A cluster's Deployment asks for this image."""
        deployment = await self._stage.deployment(cluster)
        has = "no Deployment" if deployment is None else image_of(deployment)
        return "" if has == tag else has

    async def status(self, other: Mapping[str, str] | None = None) -> str:
        """The MultiClusterResource says Applied for each member cluster, of this generation.

        Args:
            other: the states of clusters that are in another one.
        """
        resource = await self._stage.on_hub.get(MCR, HUB_NAMESPACE, WEB)
        if resource is None:
            return "it is not there"
        status = cast("dict[str, Any]", resource.get("status") or {})
        if status.get("observedGeneration") != resource["metadata"]["generation"]:
            return "the status is older than the spec"
        states = {entry["name"]: entry["state"] for entry in status.get("clusters", [])}
        expected = dict.fromkeys(self._stage.members, "Applied") | dict(other or {})
        return "" if states == expected else f"states {states}"

    async def pods(self) -> str:
        """The query API's Pods are those of the API servers."""
        return await self._witness.difference(PODS, self._stage.members)

    async def orders(self) -> str:
        """The query API's orders are those of the API servers."""
        return await self._witness.difference(CONFIGMAPS, self._stage.members, ORDERS)

    async def census(self) -> str:
        """The reconciler counted what the API servers have."""
        members = self._stage.members
        expected: dict[str, str] = {}
        for key, resource, selector in (("pods", PODS, ""), ("orders", CONFIGMAPS, ORDERS)):
            truth = await self._witness.truth(resource, members, selector)
            where = [cluster for cluster, _, _ in truth]
            expected |= {f"{cluster}.{key}": str(where.count(cluster)) for cluster in members}
        counts = await self._stage.census()
        return "" if counts == expected else f"counted {counts}, there are {expected}"

    def replacement(self, cluster: str, victim: str) -> str:
        """The deletion of a Pod and the creation of another were published."""
        if victim not in self._witness.seen("deleted", "pods", cluster):
            return "no event of the deletion"
        if not self._witness.seen("added", "pods", cluster):
            return "no event of a new Pod"
        return ""

    def published(self, cluster: str, *, gone: AbstractSet[str], created: AbstractSet[str]) -> str:
        """Every one of these changes of orders was published."""
        lost = gone - self._witness.seen("deleted", "configmaps", cluster)
        appeared = self._witness.seen("added", "configmaps", cluster)
        appeared |= self._witness.seen("listed", "configmaps", cluster)
        unseen = created - appeared
        missing = [f"deletion of {name}" for name in sorted(lost)]
        missing += [f"creation of {name}" for name in sorted(unseen)]
        return f"not published: {', '.join(missing)}" if missing else ""

    async def left_behind(self) -> str:
        """No member cluster has anything left of the Deployment."""
        left = [
            f"{cluster}/{name}"
            for resource in (DEPLOYMENTS, REPLICASETS, PODS)
            for cluster, name, _ in sorted(await self._witness.truth(resource, self._stage.members))
        ]
        return f"still there: {', '.join(left)}" if left else ""

    async def resource_gone(self) -> str:
        """The MultiClusterResource itself is gone."""
        resource = await self._stage.on_hub.get(MCR, HUB_NAMESPACE, WEB)
        return (
            "" if resource is None else f"its finalizers: {resource['metadata'].get('finalizers')}"
        )
