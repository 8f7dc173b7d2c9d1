"""The rows of storage."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver.columns.printed import UNSET, Printed, Row, printed
from fleetbus_emulator.apiserver.json_tree import listing, mapping

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
OLD_CLASS = "volume.beta.kubernetes.io/storage-class"
MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _modes(modes: list[str]) -> str:
    return ",".join(short for name, short in MODES.items() if name in modes)


def _phase(row: Row) -> str:
    return "Terminating" if row.deleting else row.status.get("phase", "")


def _class(row: Row) -> str:
    old = mapping(row.meta, "annotations").get(OLD_CLASS)
    return old or row.spec.get("storageClassName") or ""


def _volume(row: Row) -> list[Any]:
    spec = row.spec
    claim = mapping(spec, "claimRef")
    return [
        mapping(spec, "capacity").get("storage", "0"),
        _modes(listing(spec, "accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        _phase(row),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        _class(row),
        spec.get("volumeAttributesClassName", UNSET),
        row.status.get("reason", ""),
        row.age,
        spec.get("volumeMode", UNSET),
    ]


def _claim(row: Row) -> list[Any]:
    spec, status = row.spec, row.status
    bound = bool(spec.get("volumeName"))
    return [
        _phase(row),
        spec.get("volumeName", ""),
        mapping(status, "capacity").get("storage", "0") if bound else "",
        _modes(listing(status, "accessModes")) if bound else "",
        _class(row),
        spec.get("volumeAttributesClassName", UNSET),
        row.age,
        spec.get("volumeMode", UNSET),
    ]


def _storage_class(row: Row) -> list[Any]:
    default = mapping(row.meta, "annotations").get(DEFAULT_CLASS) == "true"
    return [
        f"{row.name} (default)" if default else row.name,
        row.obj.get("provisioner", ""),
        row.obj.get("reclaimPolicy", "Delete"),
        row.obj.get("volumeBindingMode", "Immediate"),
        bool(row.obj.get("allowVolumeExpansion")),
        row.age,
    ]


_CLASS = printed(
    "Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age", lambda _: []
)

COLUMNS: dict[tuple[str, str], Printed] = {
    ("", "PersistentVolume"): printed(
        "Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, "
        "VolumeAttributesClass, Reason, Age",
        _volume,
        wide="VolumeMode",
    ),
    ("", "PersistentVolumeClaim"): printed(
        "Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age",
        _claim,
        wide="VolumeMode",
    ),
    ("storage.k8s.io", "StorageClass"): Printed(_CLASS.columns, _storage_class),
}
