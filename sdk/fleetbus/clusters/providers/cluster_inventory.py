"""Provider `cluster-inventory`: sig-multicluster's ClusterProfiles on the hub.

A profile joins when its condition ControlPlaneHealthy is True for the first time. If it becomes
unhealthy later it stays a member that cannot be used: its objects are kept and marked stale,
nothing is deleted, and it continues when it is healthy again. Access data is a Secret that names
this consumer and the profile, or the profile's own data together with a credential plugin of our
allow list: a profile alone must never make us run something (rule S7).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from fleetbus.clusters.access import Access, SecretReader, checked, kubeconfig_of, read_member
from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.mirror import (
    Objects,
    Place,
    SkippedEntries,
    read_entries,
    watch_hub,
    watch_served,
)
from fleetbus.kube.client import Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.json_fields import labels, many, mapping
from fleetbus.kube.list_watch.reflect import WatchTarget
from fleetbus_proto.resources import Resource, parse_resource

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
        namespace: the only namespace to read; empty means all.
        plugins: the access providers of a profile that may be used, and the command for each.
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
        self._kubeconfigs = SecretReader(partial(read_member, key=_KEY))
        self._skipped = SkippedEntries(self.name)
        # Profiles that were healthy. It is unknown which were so before we started, so at first
        # every profile that is reported as unhealthy counts: no member must leave on our restart.
        self._joined: set[Place] | None = None

    def cluster_sets(self) -> AsyncGenerator[list[ClusterInfo]]:
        """Yield all profiles that are or were healthy, at each change of one or of its Secret."""
        return watch_served(self._hub, _PROFILES, self._watch)

    def _watch(self, profiles: Resource) -> AsyncGenerator[list[ClusterInfo]]:
        selector = f"{_CONSUMER_LABEL}={self._consumer}"
        targets = [
            WatchTarget(profiles, self._namespace),
            WatchTarget(parse_resource(_SECRETS), label_selector=selector),
        ]
        return watch_hub(self._hub, targets, self._read, self._kubeconfigs.follow)

    def _read(self, object_sets: Sequence[Objects]) -> list[ClusterInfo]:
        profiles, secrets = object_sets
        self._kubeconfigs.forget_all_but(secrets)
        joined = self._note_joined(profiles)
        infos, reasons = read_entries(
            joined, lambda place: self._info(place, profiles[place], secrets)
        )
        self._skipped.report(reasons)
        return infos

    def _note_joined(self, profiles: Objects) -> set[Place]:
        health = {place: _condition(profile) for place, profile in profiles.items()}
        healthy = {place for place, (status, _) in health.items() if status == "True"}
        if self._joined is None:
            remembered = {place for place, (status, _) in health.items() if status == "False"}
        else:
            remembered = self._joined & profiles.keys()
        self._joined = healthy | remembered
        return self._joined

    def _info(self, place: Place, profile: Object, secrets: Objects) -> ClusterInfo:
        namespace, name = place
        status, detail = _condition(profile)
        config, problem = self._access(place, profile, secrets)
        if status != "True":
            config, problem = None, f"{_HEALTHY} is {status or 'not reported'}{detail}"
        return ClusterInfo(
            name=name if self._namespace else f"{namespace}-{name}",
            labels=labels(profile),
            provider=self.name,
            config=config,
            problem=problem,
        )

    def _access(self, place: Place, profile: Object, secrets: Objects) -> Access:
        of_profile = [
            (secret_place, secret)
            for secret_place, secret in sorted(secrets.items())
            if labels(secret).get(_PROFILE_LABEL) == place[1]
        ]
        # The profile's own namespace first: others may have a profile of the same name.
        of_profile.sort(key=lambda entry: entry[0][0] != place[0])
        if of_profile:
            return self._kubeconfigs.read(*of_profile[0])
        return self._from_plugin("/".join(place), profile)

    def _from_plugin(self, profile_name: str, profile: Object) -> Access:
        status = mapping(profile, "status")
        # The field was renamed while the API was alpha.
        offered = many(status.get("accessProviders") or status.get("credentialProviders"))
        for entry in offered:
            plugin = self._plugins.get(str(entry.get("name")))
            if plugin is not None and (cluster := mapping(entry, "cluster")):
                return _with_plugin(f"ClusterProfile {profile_name}", cluster, plugin)
        names = ", ".join(str(entry.get("name")) for entry in offered) or "none"
        return None, (
            f"ClusterProfile {profile_name}: there is no Secret with the labels {_CONSUMER_LABEL}="
            f"{self._consumer} and {_PROFILE_LABEL}, and no access provider of it ({names})"
            " is one of the option 'plugins'"
        )


_REFUSED: Final = ("certificate-authority", "insecure-skip-tls-verify")
"""Fields that would read a file or leave TLS unverified."""


def _with_plugin(source: str, cluster: Mapping[str, Any], plugin: Plugin) -> Access:
    for name in _REFUSED:
        if cluster.get(name):
            return None, f"{source}: {name!r} is not allowed"
    # As the library of sig-multicluster runs them: nobody is there to be asked.
    user = {"exec": {"interactiveMode": "Never", **plugin, "command": _absolute(plugin)}}
    return checked((KubeConfig(kubeconfig_of(cluster, user), source=source), ""))


def _absolute(plugin: Plugin) -> object:
    """The command, from our working directory if it is a relative path."""
    command = plugin.get("command")
    return str(Path(command).absolute()) if isinstance(command, str) and "/" in command else command


def _condition(profile: Object) -> tuple[str, str]:
    """The status of the condition, empty if it is missing, and its message."""
    for condition in many(profile, "status", "conditions"):
        if condition.get("type") == _HEALTHY:
            detail = str(condition.get("message") or condition.get("reason") or "")
            return str(condition.get("status")), f": {detail}" if detail else ""
    return "", ""
