"""Reduces an object to what somebody has asked for: without what a cluster has filled in itself.

Two clusters have the same variant of an object if the reduced forms are equal. Left out are

- `apiVersion`, `kind`, `status`, and of the metadata everything but labels and annotations;
- labels and annotations that controllers and fleetbus write, also in the templates of pods;
- fields that an API server, a scheduler or a controller assigns, such as the clusterIP of a
  Service, the nodeName of a Pod, the selector of a Job, the CA of a webhook;
- null, empty maps and empty lists, which mean the same as an absent field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from fleetbus.kube.field_paths import FieldPath, Special, Step
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.fields.tree_size import count_values

_VARIANT: Final = "\0variant"
_DIGEST: Final = 8
_DEEPEST: Final = 200
"""Levels of an object that is compared; Python's stack ends at a thousand calls."""
MAX_VALUES: Final = 50_000
"""Values of an object that is compared; a large CustomResourceDefinition has 20,000."""
_TOP: Final = frozenset({"apiVersion", "kind", "status", "metadata"})
_LABELS: Final = frozenset(
    {
        "batch.kubernetes.io/controller-uid",
        "controller-revision-hash",
        "controller-uid",
        "pod-template-generation",
        "pod-template-hash",
    }
)
_WRITTEN_BELOW: Final = (
    "autoscaling.alpha.kubernetes.io/",
    "control-plane.alpha.kubernetes.io/",
    "deployment.kubernetes.io/",
    "deprecated.daemonset.template.generation",
    "endpoints.kubernetes.io/",
    "fleetbus.dev/",
    "kubectl.kubernetes.io/last-applied-configuration",
    "kubernetes.io/config.",
    "multicluster.admiralty.io/",
    "pv.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "volume.kubernetes.io/",
)
_TOKENS: Final = "kube-api-access-"
"""The volume with the token of the ServiceAccount, which ends in random letters."""
_GRACE: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})


def _paths(*texts: str) -> tuple[FieldPath, ...]:
    return tuple(map(FieldPath.parse, texts))


_WEBHOOKS: Final = _paths("webhooks[*].clientConfig.caBundle")
_ASSIGNED: Final[Mapping[str, tuple[FieldPath, ...]]] = {
    "core/namespaces": _paths("spec.finalizers"),
    "core/nodes": _paths("spec.podCIDR", "spec.podCIDRs", "spec.providerID"),
    "core/persistentvolumeclaims": _paths("spec.volumeName"),
    "core/persistentvolumes": _paths("spec.claimRef.uid", "spec.claimRef.resourceVersion"),
    "core/pods": _paths("spec.nodeName", "spec.serviceAccount", "spec.priority"),
    "core/serviceaccounts": _paths("secrets"),
    "core/services": _paths(
        "spec.clusterIPs",
        "spec.healthCheckNodePort",
        "spec.ipFamilies",
        "spec.ipFamilyPolicy",
        "spec.ports[*].nodePort",
    ),
    "batch/jobs": _paths("spec.selector"),
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": _WEBHOOKS,
    "admissionregistration.k8s.io/validatingwebhookconfigurations": _WEBHOOKS,
    "apiextensions.k8s.io/customresourcedefinitions": _paths(
        "spec.conversion.webhook.clientConfig.caBundle"
    ),
    "apiregistration.k8s.io/apiservices": _paths("spec.caBundle"),
}


def variant_of(resource: str) -> FieldPath:
    """The column of the variants of a resource."""
    return FieldPath((_VARIANT, resource))


def resource_of_variant(path: FieldPath) -> str | None:
    """The resource whose variants a column has; None if it is a field."""
    return str(path.steps[1]) if path.steps[0] == _VARIANT else None


def read_variant(resource: str, body: bytes) -> str:
    """The digest of the reduced form.

    Raises:
        UnreadableBody: the body is missing, malformed, too deep or too wide.
    """
    return digest_form(encode_form(reduce_tree(resource, decode(body))))


def encode_form(reduced: Mapping[str, Any]) -> bytes:
    """The JSON of a reduced form; equal for equal forms, and much smaller than they are."""
    return msgspec.json.encode(reduced, order="deterministic")


def digest_form(form: bytes) -> str:
    """Sixteen hexadecimal digits."""
    return hashlib.blake2b(form, digest_size=_DIGEST).hexdigest()


def reduce_tree(resource: str, tree: Any) -> dict[str, Any]:
    """The reduced form of an object; the tree is changed, and parts of it are in the result.

    Raises:
        UnreadableBody: it is too deep, or has too many values: nothing interrupts the work.
    """
    if count_values(tree, most=MAX_VALUES) > MAX_VALUES:
        raise UnreadableBody
    obj = _map_of(tree)
    for path in _ASSIGNED.get(resource, ()):
        _remove(obj, path.steps)
    spec = _map_of(obj.get("spec"))
    if resource == "core/services" and spec.get("clusterIP") != "None":
        spec.pop("clusterIP", None)
    if resource == "core/pods":
        _reduce_pod(spec)
    _reduce_metadata(_map_of(_map_of(spec.get("template")).get("metadata")))
    reduced = {name: value for name, value in obj.items() if name not in _TOP}
    metadata = _map_of(obj.get("metadata"))
    _reduce_metadata(metadata)
    reduced["metadata"] = {name: metadata.get(name) for name in ("labels", "annotations")}
    return _map_of(_without_empty(reduced))


def _reduce_metadata(metadata: dict[str, Any]) -> None:
    for field in ("labels", "annotations"):
        entries = _map_of(metadata.get(field))
        for name in [
            name for name in entries if name in _LABELS or name.startswith(_WRITTEN_BELOW)
        ]:
            del entries[name]


def _reduce_pod(spec: dict[str, Any]) -> None:
    spec["tolerations"] = [
        toleration
        for toleration in _maps_of(spec.get("tolerations"))
        if toleration.get("key") not in _GRACE
    ]
    spec["volumes"] = [volume for volume in _maps_of(spec.get("volumes")) if not _is_token(volume)]
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for container in _maps_of(spec.get(field)):
            container["volumeMounts"] = [
                mount for mount in _maps_of(container.get("volumeMounts")) if not _is_token(mount)
            ]


def _is_token(volume: Mapping[str, Any]) -> bool:
    return str(volume.get("name", "")).startswith(_TOKENS)


def _remove(tree: Any, steps: tuple[Step, ...]) -> None:
    step, below = steps[0], steps[1:]
    if step is Special.EACH:
        for element in _maps_of(tree):
            _remove(element, below)
    elif isinstance(tree, dict):
        if below:
            _remove(cast("dict[Any, Any]", tree).get(step), below)
        else:
            cast("dict[Any, Any]", tree).pop(step, None)


def _without_empty(tree: Any, depth: int = 0) -> Any:
    """The tree without null and empty maps and lists; None if nothing is left of it.

    Raises:
        UnreadableBody: it is too deep.
    """
    if depth > _DEEPEST:
        raise UnreadableBody
    if isinstance(tree, dict):
        fields = cast("dict[str, Any]", tree)
        reduced = {name: _without_empty(value, depth + 1) for name, value in fields.items()}
        return {name: value for name, value in reduced.items() if value is not None} or None
    if isinstance(tree, list):
        return [_without_empty(element, depth + 1) for element in cast("list[Any]", tree)] or None
    return tree


def _map_of(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _maps_of(value: Any) -> list[dict[str, Any]]:
    elements = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", element) for element in elements if isinstance(element, dict)]
