"""Provider `cluster-inventory`: sig-multicluster's ClusterProfiles on the hub.

A profile joins when its condition ControlPlaneHealthy is True for the first time. One that turns
unhealthy later stays a member that cannot be used: its rows are kept and marked stale, nothing is
deleted, and it goes on when it is healthy again. Access data is a Secret that names this consumer
and the profile, or what the profile says together with a credential plugin of our own allow list:
a profile alone must never make us run something (rule S7).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, cast

import orjson

from fleetbus.clusters.access import Access, SecretReader, read_kubeconfig
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.mirror import Objects, Skipped, follow_hub, served_by_hub
from fleetbus.kube.client import Object
from fleetbus.kube.config import KubeConfig
from fleetbus.kube.reflect import Target
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import parse_resource

_PROFILES: Final = "clusterprofiles.multicluster.x-k8s.io"
_SECRETS: Final = "v1/secrets"
_CONSUMER_LABEL: Final = "x-k8s.io/cluster-inventory-consumer"
_PROFILE_LABEL: Final = "x-k8s.io/cluster-profile"
_KEY: Final = "Config"
_HEALTHY: Final = "ControlPlaneHealthy"

Plugin = Mapping[str, Any]
"""The `exec` section of a kubeconfig: command, args, env, apiVersion."""


class ClusterInventoryProvider:
    """Clusters from ClusterProfiles.

    Args:
        hub: access data of the hub; None means the pod's service account.
        consumer: our name in the label of access Secrets.
        namespace: the only namespace that is read; empty means all.
        plugins: which access providers of a profile may be used, and what runs for each.
    """

    name = "cluster-inventory"

    def __init__(
        self,
        hub: KubeConfig | None,
        *,
        consumer: str = "fleetbus",
        namespace: str = "",
        plugins: Mapping[str, Plugin] | None = None,
    ) -> None:
        self._hub = hub
        self._consumer = consumer
        self._namespace = namespace
        self._plugins = plugins or {}
        self._kubeconfigs = SecretReader(partial(read_kubeconfig, key=_KEY))
        self._skipped = Skipped(self.name)
        # Profiles that were healthy. Who was so before our start nobody knows, so at first every
        # profile counts that is told to be unhealthy: a member must not leave because we started.
        self._joined: set[tuple[str, str]] | None = None

    async def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield all profiles that are or were healthy, at each change of one or of its Secret."""
        async with aclosing(served_by_hub(self._hub, _PROFILES)) as found:
            async for served in found:
                if served is None:
                    yield []
                    continue
                selector = f"{_CONSUMER_LABEL}={self._consumer}"
                targets = [
                    Target(served, self._namespace),
                    Target(parse_resource(_SECRETS), label_selector=selector),
                ]
                async with aclosing(follow_hub(self._hub, targets, self._read)) as sets:
                    async for infos in sets:
                        yield infos

    def _read(self, found: Sequence[Objects]) -> list[ClusterInfo]:
        profiles, secrets = found
        self._kubeconfigs.forget_all_but(secrets)
        joined = self._note_joined(profiles)
        infos: dict[str, ClusterInfo] = {}
        reasons: dict[str, str] = {}
        for place in sorted(joined):
            try:
                info = self._info(place, profiles[place], secrets)
            except InvalidName as e:
                reasons["/".join(place)] = str(e)
                continue
            if infos.setdefault(info.name, info) is not info:
                reasons["/".join(place)] = f"another profile is already named {info.name!r}"
        self._skipped.tell(reasons)
        return list(infos.values())

    def _note_joined(self, profiles: Objects) -> set[tuple[str, str]]:
        health = {place: _condition(profile) for place, profile in profiles.items()}
        healthy = {place for place, (status, _) in health.items() if status == "True"}
        if self._joined is None:
            known = {place for place, (status, _) in health.items() if status == "False"}
        else:
            known = self._joined & profiles.keys()
        self._joined = healthy | known
        return self._joined

    def _info(self, place: tuple[str, str], profile: Object, secrets: Objects) -> ClusterInfo:
        namespace, name = place
        status, said = _condition(profile)
        config, problem = self._access(place, profile, secrets)
        if status != "True":
            config, problem = None, f"{_HEALTHY} is {status or 'not told'}{said}"
        metadata = cast("dict[str, Any]", profile["metadata"])
        return ClusterInfo(
            name=name if self._namespace else f"{namespace}-{name}",
            labels=cast("dict[str, str]", metadata.get("labels") or {}),
            provider=self.name,
            config=config,
            problem=problem,
        )

    def _access(self, place: tuple[str, str], profile: Object, secrets: Objects) -> Access:
        of_profile = [
            (found, secret)
            for found, secret in sorted(secrets.items())
            if _label(secret, _PROFILE_LABEL) == place[1]
        ]
        # In the profile's own namespace before another one, which may hold a namesake's.
        of_profile.sort(key=lambda entry: entry[0][0] != place[0])
        if of_profile:
            return self._kubeconfigs.read(*of_profile[0])
        return self._from_plugin("/".join(place), profile)

    def _from_plugin(self, said: str, profile: Object) -> Access:
        status = cast("dict[str, Any]", profile.get("status") or {})
        # The field was renamed while the API was alpha.
        listed = status.get("accessProviders") or status.get("credentialProviders")
        offered = cast("list[dict[str, Any]]", listed or [])
        for entry in offered:
            plugin = self._plugins.get(str(entry.get("name")))
            cluster: object = entry.get("cluster")
            if plugin is not None and isinstance(cluster, dict):
                document = _kubeconfig(cast("dict[str, Any]", cluster), plugin)
                return KubeConfig(document, source=f"ClusterProfile {said}"), ""
        names = ", ".join(str(entry.get("name")) for entry in offered) or "none"
        return None, (
            f"ClusterProfile {said}: there is no Secret with the labels {_CONSUMER_LABEL}="
            f"{self._consumer} and {_PROFILE_LABEL}, and no access provider of it ({names})"
            " is one of the option 'plugins'"
        )


_TRUSTED: Final = ("server", "certificate-authority-data", "tls-server-name")


def _kubeconfig(cluster: Mapping[str, Any], plugin: Plugin) -> str:
    document = {
        "current-context": "cluster",
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "user"}}],
        # Only what cannot read files or leave TLS unverified.
        "clusters": [
            {"name": "cluster", "cluster": {k: cluster[k] for k in _TRUSTED if k in cluster}}
        ],
        "users": [{"name": "user", "user": {"exec": dict(plugin)}}],
    }
    return orjson.dumps(document).decode()


def _condition(profile: Object) -> tuple[str, str]:
    """The status of the condition, empty if it is not there, and what it says."""
    status = cast("dict[str, Any]", profile.get("status") or {})
    for condition in cast("list[dict[str, Any]]", status.get("conditions") or []):
        if condition.get("type") == _HEALTHY:
            said = str(condition.get("message") or condition.get("reason") or "")
            return str(condition.get("status")), f": {said}" if said else ""
    return "", ""


def _label(obj: Object, name: str) -> str:
    metadata = cast("dict[str, Any]", obj["metadata"])
    return str(cast("dict[str, str]", metadata.get("labels") or {}).get(name, ""))
