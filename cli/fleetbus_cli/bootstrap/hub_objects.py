"""The hub's side of a join with limited accounts: the Cluster and its kubeconfig Secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleetbus.clusters.account_tokens import renewal_marks
from fleetbus.clusters.leaving import drop_record
from fleetbus.clusters.member_rights import WATCHER, WRITER
from fleetbus.clusters.membership import (
    JOINED_LABEL,
    KUBECONFIG_LABELS,
    WATCHER_ACCESS,
    NotPossible,
    place_of_secret,
)
from fleetbus.clusters.providers.cluster import (
    CLUSTERS,
    JOINED_UID,
    SECRETS,
    recorded_uid,
)
from fleetbus.errors import Forbidden, KubeError
from fleetbus.kube.access_reviews import Right, missing_rights
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.json_fields import labels, mapping, string
from fleetbus_cli.bootstrap.accounts import MemberAccess
from fleetbus_cli.bootstrap.member import MANAGER, half_done
from fleetbus_cli.bootstrap.options import BootstrapOptions, HubPlaces
from fleetbus_proto.resources import parse_resource

NAMESPACES: Final = "v1/namespaces"
WRITTEN: Final = "fleetbus.dev/written-resources"
"""Annotation of a Cluster: what its writer's account may write, separated by commas."""
IMPERSONATED: Final = "fleetbus.dev/impersonated-accounts"
"""Annotation of a Cluster: which ServiceAccounts its writer may impersonate, likewise."""
DEDICATED: Final = ("fleetbus.dev/watcher", "dedicated")
"""The label of a Cluster that the pool leaves to its own watcher."""

_Place = tuple[str, str]
"""Namespace and name of a Secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubObjects:
    """The state of a cluster on the hub before the join."""

    name: str
    places: HubPlaces
    cluster: Object | None
    secrets: Mapping[_Place, Object]
    """The Secrets that exist of those that are written."""

    @property
    def secret(self) -> _Place:
        """Where the writer's kubeconfig is: where the Cluster says, or where a join puts it."""
        place = place_of_secret(self.cluster) if self.cluster else ("", "")
        return place if all(place) else (self.places.namespace, f"{self.name}-kubeconfig")

    @property
    def watcher_secret(self) -> _Place:
        """Where the kubeconfig of a watcher of its own is."""
        namespace, _, name = self._annotation(WATCHER_ACCESS).partition("/")
        return (namespace, name) if name else (self.places.release, f"{self.name}-watcher")

    @property
    def uid(self) -> str:
        """The accepted UID of the member's kube-system; empty if there is none yet."""
        return recorded_uid(self.cluster) if self.cluster else ""

    @property
    def watched(self) -> list[Any]:
        """The resources that the Cluster says to watch."""
        resources: object = self._spec.get("resources")
        return list(resources) if isinstance(resources, list) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

    @property
    def written(self) -> list[str]:
        """The resources that an earlier join allowed to be written."""
        return [name for name in self._annotation(WRITTEN).split(",") if name]

    @property
    def impersonated(self) -> list[str]:
        """The ServiceAccounts that an earlier join allowed to be impersonated."""
        return [name for name in self._annotation(IMPERSONATED).split(",") if name]

    @property
    def pool(self) -> bool:
        """Whether an earlier join left the cluster to the pool."""
        if self.cluster is None:
            return False
        key, value = DEDICATED
        return labels(self.cluster).get(key) != value

    @property
    def _spec(self) -> dict[str, Any]:
        return mapping(self.cluster, "spec")

    def _annotation(self, key: str) -> str:
        metadata = mapping(self.cluster, "metadata")
        return string(metadata, "annotations", key)

    async def require_rights(self, hub: KubeClient, *, pool: bool) -> None:
        """Make sure that the caller can write to the hub, before anything is changed.

        Raises:
            NotPossible: a right is missing, or a Secret is not one that a join wrote.
            KubeError: the hub refused, or did not answer.
        """
        clusters, secrets = parse_resource(CLUSTERS), parse_resource(SECRETS)
        places = [self.secret] if pool else [self.secret, self.watcher_secret]
        for place in places:
            secret = self.secrets.get(place)
            if secret is not None and labels(secret).get(JOINED_LABEL) != self.name:
                raise NotPossible(f"Secret {'/'.join(place)} exists and was not written by a join")
        rights = [
            Right("patch" if place in self.secrets else "create", secrets, *place)
            for place in places
        ]
        rights.append(Right("patch" if self.cluster else "create", clusters, "", self.name))
        rights = [right._replace(name="") if right.verb == "create" else right for right in rights]
        if missing := await missing_rights(hub, rights):
            listed = "; ".join(map(str, missing))
            raise NotPossible(f"you lack rights on the hub: {listed}")
        for namespace in dict.fromkeys(place[0] for place in places):
            await _require_namespace(hub, namespace)

    async def write(
        self,
        hub: KubeClient,
        access: MemberAccess,
        uid: str,
        data: Mapping[str, Mapping[str, str]],
        options: BootstrapOptions,
    ) -> list[str]:
        """Write the Secrets, then the Cluster; return their names.

        Raises:
            HalfDone: the hub refused, or did not answer.
        """
        done: list[str] = []
        try:
            for account, place in ((WATCHER, self.watcher_secret), (WRITER, self.secret)):
                if account in data:
                    marks = renewal_marks(account, options.lifetime)
                    await self._write_secret(hub, place, data[account], marks)
                    done.append(f"Secret {'/'.join(place)}")
            await self._write_cluster(hub, access, uid, options)
            done.append(f"Cluster {self.name}")
            if access.pool:
                await self._drop_watcher_secret(hub)
            # After the Cluster: the other way round an absent cluster would be held for a moment.
            await drop_record(hub, self.name, self.places.namespace)
        except KubeError as e:
            raise half_done(f"the hub refused: {e}", done) from e
        return done

    async def _write_secret(
        self, hub: KubeClient, place: _Place, data: Mapping[str, str], marks: Mapping[str, str]
    ) -> None:
        labels = {JOINED_LABEL: self.name}
        if place == self.secret:  # the watcher's own is none of the providers'
            labels |= KUBECONFIG_LABELS
        metadata: Object = {"labels": labels, "annotations": dict(marks)}
        if stored_secret := self.secrets.get(place):
            metadata["uid"] = stored_secret["metadata"]["uid"]
            await hub.patch(
                SECRETS, *place, {"metadata": metadata, "data": data}, field_manager=MANAGER
            )
            return
        metadata |= {"namespace": place[0], "name": place[1]}
        secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        await hub.create(SECRETS, secret, field_manager=MANAGER)

    async def _write_cluster(
        self, hub: KubeClient, access: MemberAccess, uid: str, options: BootstrapOptions
    ) -> None:
        key, value = DEDICATED
        metadata: Object = {
            "labels": {**options.labels, key: None if access.pool else value},
            "annotations": {
                JOINED_UID: uid,
                WRITTEN: ",".join(map(str, access.written)),
                IMPERSONATED: ",".join(map(str, access.impersonated)) or None,
                WATCHER_ACCESS: None if access.pool else "/".join(self.watcher_secret),
            },
        }
        place = dict(zip(("namespace", "name"), self.secret, strict=True))
        spec: Object = {
            "kubeconfigSecretRef": place,
            "insecureSkipTLSVerify": True if options.insecure else None,
            "allowHTTP": True if options.http else None,
        }
        if options.watched is not None or not self.watched or "*" in self.watched:
            # Named, because a watcher may read nothing else; what narrows an entry stays.
            spec["resources"] = [str(resource) for resource in access.watched]
        if self.cluster is not None:
            metadata["uid"] = self.cluster["metadata"]["uid"]
            patch = {"metadata": metadata, "spec": spec}
            await hub.patch(CLUSTERS, "", self.name, patch, field_manager=MANAGER)
            return
        cluster = _without_nulls(
            {
                "apiVersion": "fleetbus.dev/v1alpha1",
                "kind": "Cluster",
                "metadata": metadata | {"name": self.name},
                "spec": spec,
            }
        )
        await hub.create(CLUSTERS, cluster, field_manager=MANAGER)

    async def _drop_watcher_secret(self, hub: KubeClient) -> None:
        secret = self.secrets.get(self.watcher_secret)
        if secret is not None and labels(secret).get(JOINED_LABEL) == self.name:
            await hub.delete(SECRETS, *self.watcher_secret, uid=secret["metadata"]["uid"])


async def _require_namespace(hub: KubeClient, name: str) -> None:
    try:
        namespace = await hub.get(NAMESPACES, "", name)
    except Forbidden:
        return  # the write will show it
    if namespace is None:
        raise NotPossible(
            f"the hub has no namespace {name!r}: install the chart first, name the namespaces of"
            f" its release with -n and --release-namespace, or: kubectl create namespace {name}"
        )


async def read_hub(hub: KubeClient, name: str, places: HubPlaces) -> HubObjects:
    """Read the state of a cluster on the hub.

    Raises:
        KubeError: the hub refused, or did not answer.
    """
    cluster = await hub.get(CLUSTERS, "", name)
    empty = HubObjects(name=name, places=places, cluster=cluster, secrets={})
    secrets: dict[_Place, Object] = {}
    for place in dict.fromkeys((empty.secret, empty.watcher_secret)):
        secret = await hub.get(SECRETS, *place)
        if secret is not None:
            secrets[place] = secret
    return HubObjects(name=name, places=places, cluster=cluster, secrets=secrets)


def _without_nulls(tree: Object) -> Object:
    """A copy for a create, where null does not mean absent."""
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownArgumentType]
        for key, value in tree.items()
        if value is not None
    }
