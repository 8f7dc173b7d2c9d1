"""The owner mark: the owner of an object, in whatever cluster it is.

A label has the owner's UID, for selection; an annotation has the whole reference as JSON.
It is never a real ownerReference: the target's garbage collector would delete the object.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self, cast

import orjson

from fleetbus.errors import MalformedOwner

MULTI_CLUSTER_RESOURCES: Final = "fleetbus.dev/v1alpha1/multiclusterresources"
OWNER_UID_LABEL: Final = "fleetbus.dev/owner-uid"
OWNER_ANNOTATION: Final = "fleetbus.dev/owner"
ADMIRALTY_OWNER_ANNOTATION: Final = "multicluster.admiralty.io/controller-reference"
"""multicluster-controller's mark: read, never written."""
FINALIZER: Final = "fleetbus.dev/cleanup"
PROTECT_ANNOTATION: Final = "fleetbus.dev/protect"
PAUSE_ANNOTATION: Final = "fleetbus.dev/pause"
"""On an object of a MultiClusterResource, by a person: it is neither changed nor deleted."""
CONFIRM_PRUNE_ANNOTATION: Final = "fleetbus.dev/confirm-prune"

_VERSION: Final = 2
"""Version of the annotation; version 1 has no target and no field for the version."""
_LONGEST_NAME: Final = 253
_LONGEST_LABEL: Final = 63
_HASH_BYTES: Final = 5
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True, slots=True)
class Owner:
    """A reference to an owner in any cluster.

    Attributes:
        hub: the id of the hub that manages the owned object; empty for none.
        target: the cluster that the owned object was written to, which distinguishes copies in
            other clusters; empty in older marks.
        target_uid: the UID of that cluster's namespace kube-system.
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    cluster_name: str
    controller: bool = True
    block_owner_deletion: bool = True
    hub: str = ""
    target: str = ""
    target_uid: str = ""

    @classmethod
    def of(cls, owner: dict[str, Any], cluster: str, *, hub: str = "") -> Self:
        """The reference to an object that lives in a cluster."""
        metadata = owner["metadata"]
        return cls(
            api_version=owner["apiVersion"],
            kind=owner["kind"],
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            uid=metadata["uid"],
            cluster_name=cluster,
            hub=hub,
        )

    def on(self, target: str, target_uid: str) -> Self:
        """The same reference for an object in this cluster (rule D4)."""
        return replace(self, target=target, target_uid=target_uid)

    def to_json(self) -> str:
        """The value of the annotation."""
        target = {"target": self.target, "targetUid": self.target_uid} if self.target else {}
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "clusterName": self.cluster_name,
            "controller": self.controller,
            "blockOwnerDeletion": self.block_owner_deletion,
            "hub": self.hub,
            **({"version": _VERSION} | target if target else {}),
        }
        return orjson.dumps(fields).decode()


def owner_of(obj: dict[str, Any]) -> Owner | None:
    """The owner that an object's mark names; None if it has none.

    Raises:
        MalformedOwner: there is a mark, but it is malformed.
    """
    annotations = _strings(obj, "annotations")
    text = annotations.get(OWNER_ANNOTATION) or annotations.get(ADMIRALTY_OWNER_ANNOTATION)
    return parse_owner(text) if text else None


def parse_owner(text: str | bytes) -> Owner:
    """Parse the value of an owner annotation.

    Raises:
        MalformedOwner: it is not JSON, a field is missing or of the wrong type, or it is of a
            later version.
    """
    try:
        content: object = orjson.loads(text)
    except orjson.JSONDecodeError as e:
        raise MalformedOwner(f"the owner annotation is not JSON: {e}") from e
    if not isinstance(content, dict):
        raise MalformedOwner("the owner annotation is not a JSON object")
    fields = cast("dict[str, Any]", content)
    version: object = fields.get("version", 1)
    if not isinstance(version, int) or version > _VERSION:
        raise MalformedOwner(
            f"the owner annotation has version {version}; the latest supported is {_VERSION}"
        )
    return Owner(
        api_version=_text(fields, "apiVersion"),
        kind=_text(fields, "kind"),
        namespace=_text(fields, "namespace", default=""),
        name=_text(fields, "name"),
        uid=_text(fields, "uid"),
        cluster_name=_text(fields, "clusterName"),
        controller=_flag(fields, "controller"),
        block_owner_deletion=_flag(fields, "blockOwnerDeletion"),
        hub=_text(fields, "hub", default=""),
        target=_text(fields, "target", default=""),
        target_uid=_text(fields, "targetUid", default=""),
    )


def _text(fields: Mapping[str, Any], field: str, default: str | None = None) -> str:
    value = fields.get(field)
    value = default if value is None else value
    if not isinstance(value, str) or (not value and default is None):
        raise MalformedOwner(f"the owner annotation has no valid field {field!r}")
    return value


def _flag(fields: Mapping[str, Any], field: str) -> bool:
    value = fields.get(field)
    if value is not None and not isinstance(value, bool):
        raise MalformedOwner(f"field {field!r} of the owner annotation is not a boolean")
    return value is None or value


def set_owner(child: dict[str, Any], owner: Owner) -> dict[str, Any]:
    """Put the mark on an object in place, and return the object."""
    metadata = child.setdefault("metadata", {})
    metadata["labels"] = (metadata.get("labels") or {}) | {OWNER_UID_LABEL: owner.uid}
    marked = {OWNER_ANNOTATION: owner.to_json()}
    metadata["annotations"] = (metadata.get("annotations") or {}) | marked
    return child


def own(child: dict[str, Any], owner: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Put the mark of an owner on an object in place, and return the object.

    Args:
        child: the object to be written, in any cluster.
        owner: an object as its API server returned it: with apiVersion, kind, name and uid.
        cluster: the owner's cluster.
    """
    return set_owner(child, Owner.of(owner, cluster))


def child_name(
    owner: dict[str, Any], cluster: str, *, suffix: str = "", limit: int = _LONGEST_LABEL
) -> str:
    """A name for a child that is unique to its owner: `<namespace>-<name>-<hash>`.

    The hash covers the owner's cluster, kind, namespace and name, and the suffix, so it is the same
    in every run, and the readable part may be cut. The name is a DNS-1123 label.

    Args:
        owner: an object with apiVersion, kind and a name.
        cluster: the owner's cluster.
        suffix: distinguishes several children of one owner.
        limit: the longest name, 20 to 253 letters; 63 fits every kind and every label.

    Raises:
        ValueError: the limit is out of these bounds.
    """
    if not 20 <= limit <= _LONGEST_NAME:  # noqa: PLR2004 -- as the docstring says
        raise ValueError(f"limit must be between 20 and {_LONGEST_NAME}, not {limit}")
    metadata = owner["metadata"]
    namespace, name = metadata.get("namespace") or "", metadata["name"]
    group = str(owner["apiVersion"]).rpartition("/")[0]
    digest = _digest(cluster, group, str(owner["kind"]), namespace, name, suffix)
    parts = [word for word in (namespace, name, suffix) if word]
    readable = re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower())
    prefix = readable[: limit - len(digest) - 1].strip("-")
    return f"{prefix}-{digest}" if prefix else digest


def label_value(text: str) -> str:
    """The text as a label value: itself if valid, else truncated and cleaned, with a hash."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    digest = _digest(text)
    readable = re.sub(r"[^-A-Za-z0-9_.]+", "-", text)[: _LONGEST_LABEL - len(digest) - 1]
    prefix = readable.strip("-_.")
    return f"{prefix}-{digest}" if prefix else digest


def _digest(*parts: str) -> str:
    """A hash that also depends on the boundaries between the parts."""
    return hashlib.blake2b(orjson.dumps(parts), digest_size=_HASH_BYTES).hexdigest()


def is_owned_by(obj: dict[str, Any], owner_uid: str) -> bool:
    """Whether the object has this owner's mark, in both label and annotation.

    A label alone may be copied; both must agree before anything is deleted (rules D4, D5).
    """
    if _strings(obj, "labels").get(OWNER_UID_LABEL) != owner_uid:
        return False
    try:
        owner = owner_of(obj)
    except MalformedOwner:
        return False
    return owner is not None and owner.uid == owner_uid


def _strings(obj: dict[str, Any], field: str) -> dict[str, str]:
    """Labels or annotations; empty where a broken API server sends none or something else."""
    metadata: object = obj.get("metadata")
    strings: object = cast("Any", metadata).get(field) if isinstance(metadata, dict) else None
    return cast("dict[str, str]", strings) if isinstance(strings, dict) else {}


def field_manager(hub_id: str) -> str:
    """The field manager of a hub for server-side apply: `fleetbus-<hash of the hub's id>`."""
    digest = hashlib.blake2b(hub_id.encode(), digest_size=5).hexdigest()
    return f"fleetbus-{digest}"
