"""Checks of the components on the hub: what each may do there, and which version each has."""

from __future__ import annotations

import os
import pathlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleetbus.clusters.providers.cluster import CLUSTERS, SECRETS
from fleetbus.errors import ConfigError, Forbidden, KubeError
from fleetbus.kube.access_reviews import Right, missing_rights
from fleetbus.kube.client import KubeClient
from fleetbus.kube.json_fields import mapping, string
from fleetbus.process.access.tokens import read_subject
from fleetbus.process.findings import Finding, error, ok, warning
from fleetbus_cli.doctor.members import missing_findings
from fleetbus_proto.resources import CORE, Resource, parse_resource

_COMPONENTS: Final = "app.kubernetes.io/part-of=fleetbus"
_KIND: Final = "app.kubernetes.io/component"
_VERSION: Final = "app.kubernetes.io/version"
_FLEET: Final = "fleetbus.dev"
_CRDS: Final = "apiextensions.k8s.io/v1/customresourcedefinitions"
TOKEN: Final = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""The token of the pod's service account."""
_PREFIX: Final = "system:serviceaccount:"
_FOLLOW: Final = ("list", "watch")
_RENEW: Final = ("get", "patch")
"""Renewal of the tokens that a join has put into kubeconfigs."""
_ENDS: Final = {
    "projector": "projector",
    "distributor": "distributor",
    "query-api": "query-api",
    "pool": "watcher-pool",
}
"""The ends of names in the chart, and the kinds of those components."""


@dataclass(frozen=True, slots=True)
class Component:
    """A ServiceAccount of the chart.

    Attributes:
        kind: as in the label of the chart, like `projector`.
    """

    kind: str
    namespace: str
    name: str

    @property
    def user(self) -> str:
        """The name of its user in RBAC."""
        return f"{_PREFIX}{self.namespace}:{self.name}"

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of its user."""
        return (
            "system:serviceaccounts",
            f"system:serviceaccounts:{self.namespace}",
            "system:authenticated",
        )


_DISTRIBUTED: Final = ("get", "list", "patch")
_RESOURCES: Final = "multiclusterresources"
_OF_ITSELF: Final = {
    "projector": (Right("patch", Resource(_FLEET, "v1alpha1", "clusters/status")),),
    "distributor": (
        *(Right(verb, Resource(_FLEET, "v1alpha1", _RESOURCES)) for verb in _DISTRIBUTED),
        Right("update", Resource(_FLEET, "v1alpha1", f"{_RESOURCES}/status")),
        Right("create", Resource(CORE, "v1", "events")),
        Right("get", Resource(CORE, "v1", "namespaces")),
        Right("get", parse_resource(_CRDS), name=f"{_RESOURCES}.{_FLEET}"),
    ),
    "query-api": (
        Right("create", Resource("authentication.k8s.io", "v1", "tokenreviews")),
        Right("create", Resource("authorization.k8s.io", "v1", "subjectaccessreviews")),
    ),
    "reconciler": (),
    "watcher-pool": (),
}


def rights_on_hub(kind: str, namespaces: Collection[str]) -> list[Right]:
    """The rights that a component uses on the hub.

    Args:
        kind: of the component; a watcher of one cluster has its rights there.
        namespaces: those of the kubeconfig Secrets that the Clusters name; none if the fleet has
            no Clusters, as with another provider.
    """
    if kind not in _OF_ITSELF:
        return []
    rights = list(_OF_ITSELF[kind])
    if namespaces and kind != "query-api":
        clusters = parse_resource(CLUSTERS)
        rights += [Right(verb, clusters) for verb in _FOLLOW]
        # Whether the record of a cluster that left is of an earlier one of that name.
        rights += [] if kind == "watcher-pool" else [Right("get", clusters)]
        secrets = parse_resource(SECRETS)
        rights += [Right(verb, secrets, place) for place in namespaces for verb in _FOLLOW]
        if kind == "projector":
            rights += [Right(verb, secrets, place) for place in namespaces for verb in _RENEW]
    return rights


async def check_components(hub: KubeClient, namespaces: Collection[str]) -> AsyncIterator[Finding]:
    """Check the rights of every component of the chart, as far as this user may ask for them.

    Args:
        hub: the client of the hub.
        namespaces: those of the kubeconfig Secrets.
    """
    try:
        accounts = await hub.list("v1/serviceaccounts", label_selector=_COMPONENTS)
        components = [_component(account["metadata"]) for account in accounts]
        for component in components:
            rights = rights_on_hub(component.kind, namespaces)
            missing = await missing_rights(
                hub, rights, user=component.user, groups=component.groups
            )
            for finding in _findings(component, rights, missing):
                yield finding
    except Forbidden as e:
        async for finding in _check_this_pod(hub, namespaces, e):
            yield finding
    except (KubeError, ConfigError) as e:
        yield error("hub", str(e), "is its API server reachable, and are the credentials right?")


def _component(metadata: Any) -> Component:
    kind = string(metadata, "labels", _KIND)
    return Component(kind, str(metadata["namespace"]), str(metadata["name"]))


def _findings(
    component: Component, rights: Sequence[Right], missing: Sequence[Right]
) -> Iterator[Finding]:
    about = f"{component.kind} on hub"
    advice = (
        f"give ServiceAccount {component.namespace}/{component.name} the right again:"
        " `helm upgrade` restores the roles of the chart"
    )
    yield from missing_findings(about, component.name, missing, advice)
    if rights and not missing:
        yield ok(about, f"{component.name} has its {len(rights)} rights")


async def _check_this_pod(
    hub: KubeClient, namespaces: Collection[str], refused: Forbidden
) -> AsyncIterator[Finding]:
    """Check the component in whose pod this runs: everybody may ask what they may do."""
    component = this_component(_read_token)
    if component is None:
        yield warning(
            "hub",
            f"the rights of the components were not checked: {refused}",
            "run doctor as a user who may list ServiceAccounts and create SubjectAccessReviews, or"
            " with `kubectl exec` in the pod of each component",
        )
        return
    rights = rights_on_hub(component.kind, namespaces)
    try:
        missing = await missing_rights(hub, rights)
    except (KubeError, ConfigError) as e:
        yield error("hub", str(e), "is its API server reachable?")
        return
    for finding in _findings(component, rights, missing):
        yield finding


def this_component(read_token: Callable[[], str]) -> Component | None:
    """The component of the chart in whose pod this process runs; None elsewhere."""
    parts = read_subject(read_token()).removeprefix(_PREFIX).split(":")
    if len(parts) != 2:  # noqa: PLR2004 -- namespace and name
        return None
    namespace, name = parts
    kind = "reconciler" if "-reconciler-" in name else ""
    kind = next((component for end, component in _ENDS.items() if name.endswith(f"-{end}")), kind)
    return Component(kind, namespace, name) if kind else None


def _read_token() -> str:
    try:
        return TOKEN.read_text() if "KUBERNETES_SERVICE_HOST" in os.environ else ""
    except OSError:
        return ""


async def check_versions(hub: KubeClient) -> AsyncIterator[Finding]:
    """Check that all components have one version, and that all their replicas are ready."""
    try:
        deployments = await hub.list("apps/v1/deployments", label_selector=_COMPONENTS)
    except Forbidden as e:
        if component := this_component(_read_token):  # by design, and nothing to mend
            yield ok("versions", f"not compared: {component.name} may not list Deployments")
        else:
            yield warning(
                "versions", f"the Deployments cannot be read: {e}", "see the finding above"
            )
        return
    except (KubeError, ConfigError) as e:
        yield warning("versions", f"the Deployments cannot be read: {e}", "see the finding above")
        return
    versions: dict[str, list[str]] = {}
    for deployment in deployments:
        metadata, status = mapping(deployment["metadata"]), mapping(deployment, "status")
        name = f"{metadata['namespace']}/{metadata['name']}"
        version = string(metadata, "labels", _VERSION) or "unknown"
        versions.setdefault(version, []).append(name)
        replicas, ready = (
            int(deployment["spec"].get("replicas", 1)),
            int(status.get("readyReplicas") or 0),
        )
        if ready < replicas:
            advice = f"`kubectl -n {metadata['namespace']} describe deployment {metadata['name']}`"
            yield error("components", f"{name}: {ready} of {replicas} replicas are ready", advice)
    if len(versions) > 1:
        text = "; ".join(f"{version}: {', '.join(names)}" for version, names in versions.items())
        advice = "finish the upgrade: `helm upgrade` gives all of them the same version"
        yield warning("versions", f"the components have different versions: {text}", advice)
    elif versions:
        yield ok("versions", f"all components have version {next(iter(versions))}")
