"""Strips from a deleted object what its cluster assigned to it, as Velero does.

Such values belong to the deleted object: an address, a node, a volume, a token. The new one gets
others, or could not be created. Their paths are returned, so that users see what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from fleetbus.kube.json_fields import many, mapping

Object = dict[str, Any]

_OF_METADATA: Final = (
    *("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation"),
    *("deletionGracePeriodSeconds", "managedFields", "selfLink", "ownerReferences", "generateName"),
)
"""Fields that every object has; they are not reported."""
_OF_DELETION: Final = frozenset({"foregroundDeletion", "orphan"})
"""Finalizers that an API server adds while it deletes."""
_BINDING: Final = ("pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller")
_PROVISIONING: Final = (
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/selected-node",
)
_JOB_LABELS: Final = (
    *("controller-uid", "batch.kubernetes.io/controller-uid"),
    *("job-name", "batch.kubernetes.io/job-name"),
)
_PROJECTED: Final = "kube-api-access-"
_MADE_SECRETS: Final = ("-token-", "-dockercfg-")
"""Parts behind the name of a ServiceAccount in the names of Secrets that controllers make."""


class _Stripping:
    """Removes fields of one object, and notes their paths."""

    def __init__(self, tree: Object) -> None:
        self.tree = tree
        self.paths: list[str] = []

    def spec(self) -> Object:
        return mapping(self.tree, "spec")

    def drop(self, fields: Object, name: str, path: str) -> None:
        """Remove a field, if it is there."""
        if fields.pop(name, None) not in (None, "", [], {}) and path not in self.paths:
            self.paths.append(path)

    def drop_members(self, *path: str, names: tuple[str, ...]) -> None:
        """Remove labels or annotations."""
        members = mapping(self.tree, *path)
        for name in names:
            self.drop(members, name, f"{'.'.join(path)}[{name}]")

    def keep(self, fields: Object, name: str, path: str, keeps: Callable[[Object], bool]) -> None:
        """Keep only some elements of a list."""
        elements = list(many(fields, name))
        remaining = [each for each in elements if keeps(each)]
        if len(remaining) < len(elements):
            fields[name] = remaining
            if path not in self.paths:
                self.paths.append(path)


def strip_assigned(tree: Object, resource: str, *, has_volume: bool = False) -> list[str]:
    """Strip an object of a resource, in place; return the paths of what its author may miss.

    Args:
        tree: the object.
        resource: the resource key.
        has_volume: a claim's volume is put back with it, so the claim stays bound to it.
    """
    tree.pop("status", None)
    metadata = mapping(tree.setdefault("metadata", {}))
    for name in _OF_METADATA:
        metadata.pop(name, None)
    finalizers = metadata.pop("finalizers", None)
    if isinstance(finalizers, list):
        remaining = [each for each in cast("list[Any]", finalizers) if each not in _OF_DELETION]
        metadata |= {"finalizers": remaining} if remaining else {}
    stripping = _Stripping(tree)
    if resource == "core/persistentvolumeclaims":
        _strip_claim(stripping, has_volume=has_volume)
    elif strip := _STRIPS.get(resource):
        strip(stripping)
    return stripping.paths


def _strip_namespace(stripping: _Stripping) -> None:
    stripping.spec().pop("finalizers", None)


def _strip_service(stripping: _Stripping) -> None:
    spec = stripping.spec()
    if spec.get("clusterIP") != "None":  # a headless Service stays one
        stripping.drop(spec, "clusterIP", "spec.clusterIP")
        stripping.drop(spec, "clusterIPs", "spec.clusterIPs")
    stripping.drop(spec, "healthCheckNodePort", "spec.healthCheckNodePort")
    for port in many(spec, "ports"):
        stripping.drop(port, "nodePort", "spec.ports[].nodePort")


def _strip_claim(stripping: _Stripping, *, has_volume: bool) -> None:
    stripping.drop_members("metadata", "annotations", names=_BINDING + _PROVISIONING)
    if not has_volume:
        stripping.drop(stripping.spec(), "volumeName", "spec.volumeName")


def _strip_volume(stripping: _Stripping) -> None:
    # Without the UID the volume waits for a claim of the same name, which then is bound again.
    claim = mapping(stripping.spec(), "claimRef")
    for name in ("uid", "resourceVersion"):
        stripping.drop(claim, name, f"spec.claimRef.{name}")
    stripping.drop_members("metadata", "annotations", names=_BINDING)


def _strip_pod(stripping: _Stripping) -> None:
    spec = stripping.spec()
    for name in ("nodeName", "priority", "ephemeralContainers"):
        stripping.drop(spec, name, f"spec.{name}")
    legacy = f"{spec.get('serviceAccountName') or 'default'}-token-"

    def is_kept(volume: Mapping[str, Any]) -> bool:
        return not str(volume.get("name", "")).startswith((_PROJECTED, legacy))

    stripping.keep(spec, "volumes", "spec.volumes[] of tokens", is_kept)
    for field in ("containers", "initContainers"):
        for container in many(spec, field):
            mounts = "spec.volumes[] of tokens"
            stripping.keep(container, "volumeMounts", mounts, is_kept)


def _strip_job(stripping: _Stripping) -> None:
    spec = stripping.spec()
    if spec.get("manualSelector"):
        return
    stripping.drop(spec, "selector", "spec.selector")
    stripping.drop_members("metadata", "labels", names=_JOB_LABELS)
    stripping.drop_members("spec", "template", "metadata", "labels", names=_JOB_LABELS)


def _strip_service_account(stripping: _Stripping) -> None:
    name = str(mapping(stripping.tree, "metadata").get("name", ""))
    prefixes = tuple(f"{name}{suffix}" for suffix in _MADE_SECRETS)
    for field in ("secrets", "imagePullSecrets"):
        stripping.keep(
            stripping.tree,
            field,
            f"{field}[] of tokens",
            lambda secret: not str(secret.get("name", "")).startswith(prefixes),
        )


_STRIPS: Final[dict[str, Callable[[_Stripping], None]]] = {
    "core/namespaces": _strip_namespace,
    "core/services": _strip_service,
    "core/persistentvolumes": _strip_volume,
    "core/pods": _strip_pod,
    "core/serviceaccounts": _strip_service_account,
    "batch/jobs": _strip_job,
}
