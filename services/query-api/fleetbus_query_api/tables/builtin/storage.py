"""The columns of storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from fleetbus.kube.json_fields import Tree, first_maps, look, mapping, text
from fleetbus.process.human_time import parse_time
from fleetbus_query_api.tables.cells import at, size, strings, truth
from fleetbus_query_api.tables.column import (
    AGE,
    DEFAULT_MARK,
    NAME,
    NONE,
    UNSET,
    Column,
    column,
    name_of,
    wide,
)

_DEFAULT_CLASS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_OLD_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
_MODES: Final = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(tree: Tree, *path: str) -> str:
    modes = strings(tree, *path)
    return ",".join(short for name, short in _MODES.items() if name in modes)


def _phase(tree: Tree) -> str:
    is_deleted = look(tree, "metadata", "deletionTimestamp")
    return "Terminating" if is_deleted else text(tree, "status", "phase")


def _class(tree: Tree) -> str:
    old = look(tree, "metadata", "annotations", _OLD_CLASS)
    return text(tree, "spec", "storageClassName") if old is None else str(old)


def _claim(volume: Tree) -> str:
    claim = mapping(volume, "spec", "claimRef")
    return f"{text(claim, 'namespace')}/{text(claim, 'name')}" if claim else ""


def _if_bound(cell: Callable[[Tree], str]) -> Callable[[Tree], str]:
    return lambda claim: cell(claim) if text(claim, "spec", "volumeName") else ""


def _listed_class_name(classes: Sequence[Tree]) -> Callable[[Tree], str]:
    """Mark the newest of the default classes of a list, which is the one that is used."""
    defaults = sorted(filter(_is_default, classes), key=name_of)
    newest = max(defaults, key=_created, default=None)
    if newest is None:
        return name_of
    marked = name_of(newest)
    return lambda each: name_of(each) + (DEFAULT_MARK if name_of(each) == marked else "")


def _is_default(storage_class: Tree) -> bool:
    annotations = look(storage_class, "metadata", "annotations")
    return any(look(annotations, key) == "true" for key in _DEFAULT_CLASS)


def _created(storage_class: Tree) -> float:
    created = parse_time(look(storage_class, "metadata", "creationTimestamp") or "")
    return created.timestamp() if created else 0.0


def _token_requests(driver: Tree) -> str:
    if look(driver, "spec", "tokenRequests") is None:
        return UNSET
    return ",".join(
        text(request, "audience") for request in first_maps(driver, "spec", "tokenRequests")
    )


def _lifecycle_modes(driver: Tree) -> str:
    return ",".join(strings(driver, "spec", "volumeLifecycleModes")) or NONE


def _flag(name: str, field: str, *, default: bool = False) -> Column:
    return column(name, truth("spec", field, default=default), type="boolean")


_ATTRIBUTES_CLASS: Final = column(
    "VolumeAttributesClass", at("spec", "volumeAttributesClassName", default=UNSET)
)
_VOLUME_MODE: Final = wide("VolumeMode", at("spec", "volumeMode", default=UNSET))

COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "core/persistentvolumes": (
        NAME,
        column("Capacity", at("spec", "capacity", "storage", default="0")),
        column("Access Modes", lambda tree: _modes(tree, "spec", "accessModes")),
        column("Reclaim Policy", at("spec", "persistentVolumeReclaimPolicy")),
        column("Status", _phase),
        column("Claim", _claim),
        column("StorageClass", _class),
        _ATTRIBUTES_CLASS,
        column("Reason", at("status", "reason")),
        AGE,
        _VOLUME_MODE,
    ),
    "core/persistentvolumeclaims": (
        NAME,
        column("Status", _phase),
        column("Volume", at("spec", "volumeName")),
        column("Capacity", _if_bound(at("status", "capacity", "storage", default="0"))),
        column("Access Modes", _if_bound(lambda tree: _modes(tree, "status", "accessModes"))),
        column("StorageClass", _class),
        _ATTRIBUTES_CLASS,
        AGE,
        _VOLUME_MODE,
    ),
    "storage.k8s.io/storageclasses": (
        replace(NAME, in_list=_listed_class_name),
        column("Provisioner", at("provisioner")),
        column("ReclaimPolicy", at("reclaimPolicy", default="Delete")),
        column("VolumeBindingMode", at("volumeBindingMode", default="Immediate")),
        column("AllowVolumeExpansion", truth("allowVolumeExpansion")),
        AGE,
    ),
    "storage.k8s.io/volumeattributesclasses": (
        NAME,
        column("DriverName", at("driverName")),
        AGE,
    ),
    "storage.k8s.io/volumeattachments": (
        NAME,
        Column("Attacher", at("spec", "attacher"), format="name"),
        column("PV", at("spec", "source", "persistentVolumeName")),
        column("Node", at("spec", "nodeName")),
        column("Attached", truth("status", "attached"), type="boolean"),
        AGE,
    ),
    "storage.k8s.io/csinodes": (
        NAME,
        column("Drivers", size("spec", "drivers"), type="integer"),
        AGE,
    ),
    "storage.k8s.io/csidrivers": (
        NAME,
        _flag("AttachRequired", "attachRequired", default=True),
        _flag("PodInfoOnMount", "podInfoOnMount"),
        _flag("StorageCapacity", "storageCapacity"),
        column("TokenRequests", _token_requests),
        _flag("RequiresRepublish", "requiresRepublish"),
        column("Modes", _lifecycle_modes),
        AGE,
    ),
    "storage.k8s.io/csistoragecapacities": (
        NAME,
        column("StorageClassName", at("storageClassName")),
        column("Capacity", at("capacity", default=UNSET)),
    ),
}
