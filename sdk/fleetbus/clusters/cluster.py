"""Provider `cluster`: the Cluster objects of the hub and the kubeconfig Secrets they name.

Any program may create them; a changed label, Secret or spec is followed at once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, cast

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.kube import KubeClient, Object
from fleetbus.kube_config import KubeConfig, distrust
from fleetbus.reflect import Changed, Listed, Observer, Target, WatchType, reflect
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import parse_resource

CLUSTERS: Final = "fleetbus.dev/v1alpha1/clusters"
SECRETS: Final = "v1/secrets"
KUBECONFIG_LABEL: Final = "fleetbus.dev/kubeconfig=true"
"""Only Secrets with this label are read, so that our rights can end there."""
KUBECONFIG_KEY: Final = "kubeconfig"

log = structlog.get_logger()

_Objects = dict[tuple[str, str], Object]


class ClusterProvider:
    """Clusters from the hub's Cluster objects.

    Args:
        hub: access data of the hub; None means the pod's service account.
    """

    name = "cluster"

    def __init__(self, hub: KubeConfig | None) -> None:
        self._hub = hub

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield all clusters at each change of a Cluster or of a kubeconfig Secret.

        Nothing is yielded while the hub cannot be read: what was told before stays true.
        """
        async with KubeClient(self._hub) as client:
            clusters = _Mirror(client, Target(parse_resource(CLUSTERS)))
            secrets = _Mirror(
                client, Target(parse_resource(SECRETS), label_selector=KUBECONFIG_LABEL)
            )
            changed = asyncio.Event()
            tasks = [m.start(changed) for m in (clusters, secrets)]
            for task in tasks:
                task.add_done_callback(lambda _: changed.set())
            try:
                last: list[ClusterInfo] | None = None
                kubeconfigs = Kubeconfigs()
                while True:
                    await changed.wait()
                    changed.clear()
                    _raise_if_ended(tasks)
                    if clusters.objects is None or secrets.objects is None:
                        continue
                    infos = infos_of(clusters.objects, secrets.objects, kubeconfigs)
                    if infos != last:
                        last = infos
                        yield infos
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


class _Mirror:
    """All objects of one resource of the hub; None until they have been listed."""

    def __init__(self, client: KubeClient, target: Target) -> None:
        self._client = client
        self._target = target
        self.objects: _Objects | None = None

    def start(self, changed: asyncio.Event) -> asyncio.Task[None]:
        name = f"mirror {self._target.resource.plural}"
        return asyncio.create_task(self._run(changed), name=name)

    async def _run(self, changed: asyncio.Event) -> None:
        observer = Observer(failed=self._tell)
        async for step in reflect(self._client, self._target, observer=observer):
            if isinstance(step, Listed):
                self.objects = {_key(obj): obj for obj in step.objects}
            else:
                self._take(step)
            changed.set()

    def _take(self, change: Changed) -> None:
        objects = self.objects if self.objects is not None else {}
        if change.type is WatchType.DELETED:
            objects.pop(_key(change.object), None)
        else:
            objects[_key(change.object)] = change.object
        self.objects = objects

    def _tell(self, error: Exception) -> None:
        log.warning("hub_unreadable", resource=str(self._target.resource), error=str(error))


def _raise_if_ended(mirrors: Sequence[asyncio.Task[None]]) -> None:
    """Mirroring never ends by itself, and a mirror that stands still would look like quiet."""
    for task in mirrors:
        if task.done():
            task.result()


def _key(obj: Object) -> tuple[str, str]:
    metadata = obj["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])


Access = tuple[KubeConfig | None, str]
"""Access data, or why there is none."""


class Kubeconfigs:
    """What the Secrets hold; each is parsed once per version of it, not at each change of any."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Object, Access]] = {}

    def read(self, place: tuple[str, str], secret: Object) -> Access:
        """The access data in the Secret at this place."""
        known = self._known.get(place)
        if known is not None and _is_same(known[0], secret):
            return known[1]
        access = _read_secret("/".join(place), secret)
        self._known[place] = (secret["metadata"], access)
        return access

    def forget_all_but(self, secrets: _Objects) -> None:
        """Keep nothing of a Secret that is gone."""
        for place in self._known.keys() - secrets.keys():
            del self._known[place]


def _is_same(known: Object, secret: Object) -> bool:
    now = cast("Object", secret["metadata"])
    version = now.get("resourceVersion")
    return bool(version) and (known.get("uid"), known.get("resourceVersion")) == (
        now.get("uid"),
        version,
    )


def infos_of(clusters: _Objects, secrets: _Objects, kubeconfigs: Kubeconfigs) -> list[ClusterInfo]:
    """The clusters that these objects describe."""
    kubeconfigs.forget_all_but(secrets)
    infos: list[ClusterInfo] = []
    for _, cluster in sorted(clusters.items()):
        with suppress(InvalidName):  # the CRD refuses such a name; an older one may stand there
            infos.append(_info(cluster, secrets, kubeconfigs))
    return infos


def _info(cluster: Object, secrets: _Objects, kubeconfigs: Kubeconfigs) -> ClusterInfo:
    metadata = cast("dict[str, Any]", cluster["metadata"])
    spec = cast("dict[str, Any]", cluster.get("spec") or {})
    config, problem = _access(spec, secrets, kubeconfigs)
    return ClusterInfo(
        name=str(metadata["name"]),
        labels=cast("dict[str, str]", metadata.get("labels") or {}),
        provider="cluster",
        config=config,
        problem=problem,
        resources=tuple(cast("list[str]", spec.get("resources") or [])),
        suspended=bool(spec.get("suspend", False)),
    )


def _access(spec: dict[str, Any], secrets: _Objects, kubeconfigs: Kubeconfigs) -> Access:
    reference = cast("dict[str, Any]", spec.get("kubeconfigSecretRef") or {})
    place = (str(reference.get("namespace") or ""), str(reference.get("name") or ""))
    secret = secrets.get(place)
    if secret is None:
        said = "/".join(place)
        return None, f"Secret {said} is missing, or lacks the label {KUBECONFIG_LABEL}"
    config, problem = kubeconfigs.read(place, secret)
    insecure = bool(spec.get("insecureSkipTLSVerify", False))
    return (replace(config, insecure=insecure) if config is not None else None), problem


def _read_secret(said: str, secret: Object) -> Access:
    encoded = cast("dict[str, str]", secret.get("data") or {}).get(KUBECONFIG_KEY)
    if not encoded:
        return None, f"Secret {said} has no data key {KUBECONFIG_KEY!r}"
    try:
        document = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None, f"Secret {said}: data key {KUBECONFIG_KEY!r} is not text"
    config = KubeConfig(document, source=f"Secret {said}")
    problem = distrust(config)
    return (None, problem) if problem else (config, "")
