"""Secrets planted in every place of an object that can hold one, and the search for them (S1)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

Object = dict[str, Any]

CANARY = "canary-4711"
"""A value that may show up nowhere; `hostile.objects` plants the same."""
VISIBLE = "visible-4711"
"""Planted beside it: a search that does not find this one is broken."""

SECRETS, MAPS, PODS = "v1/secrets", "v1/configmaps", "v1/pods"
DEPLOYMENTS = "apps/v1/deployments"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
RULES: list[Object] = [
    {"resource": "*", "drop": ["metadata.annotations[internal.example.com/*]"]},
    {"resource": "core/configmaps", "redact": ["data[secret*]"], "drop": ["binaryData"]},
    {
        "resource": "core/pods",
        "redact": [
            "spec.*[*].env[*].value",
            "spec.containers[0].args",
            "metadata.annotations[vault.example.com/*]",
        ],
    },
    {"resource": "apps/*", "redact": ["spec.template.spec.containers[*].env[*].value"]},
]
"""Rules of the watchers, for what is planted outside of Secrets."""


def planted(random: Random, count: int) -> Iterator[tuple[str, Object]]:
    """So many objects, each with its type; complete, to be restored as they are."""
    for number in range(count):
        make = random.choice((_secret, _release, _config_map, _pod, _deployment))
        gvr, obj = make(random, f"o{number}")
        _dress(random, obj, number)
        yield gvr, obj


def _value(random: Random) -> str:
    return random.choice(("", "x", "xy")) + CANARY + f"-{random.randrange(10**6)}"


def _encoded(random: Random) -> str:
    return base64.b64encode(_value(random).encode()).decode()


def _dress(random: Random, obj: Object, number: int) -> None:
    applied = json.dumps(obj | {"data": {"p": _value(random)}})
    obj["metadata"] |= {
        "namespace": "default",
        "uid": f"00000000-0000-0000-0000-{number:012}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"note": VISIBLE},
        "annotations": {
            LAST_APPLIED: applied,
            "internal.example.com/key": _value(random),
            **obj["metadata"].get("annotations", {}),
        },
        "managedFields": [
            {"manager": _value(random), "operation": "Update", "apiVersion": "v1"}
            | {"fieldsV1": {f"f:{_value(random)}": {}}, "fieldsType": "FieldsV1"}
        ],
    }


def _secret(random: Random, name: str) -> tuple[str, Object]:
    kind = random.choice(("Opaque", "kubernetes.io/tls", "kubernetes.io/service-account-token"))
    data = {f"key{n}": _encoded(random) for n in range(random.randint(1, 4))}
    copied = json.dumps({"kind": "Secret", "stringData": {"plain": _value(random)}})
    copies = {"kapp.k14s.io/original": copied, "objectset.rio.cattle.io/applied": copied}
    metadata = {"name": name, "annotations": {**copies, "any.example.com/x": _encoded(random)}}
    secret = {"metadata": metadata, "type": kind, "data": data}
    return SECRETS, secret | {"stringData": {"plain": _value(random)}}


def _release(random: Random, name: str) -> tuple[str, Object]:
    """Release of Helm; nothing of it may show, not even its name."""
    metadata = {"name": f"sh.helm.release.v1.{CANARY}.{name}"}
    data = {"release": _encoded(random)}
    return SECRETS, {"metadata": metadata, "type": "helm.sh/release.v1", "data": data}


def _config_map(random: Random, name: str) -> tuple[str, Object]:
    data = {"secret.conf": _value(random), "note": VISIBLE, "secrets": _value(random)}
    binary = {"key": _encoded(random)}
    return MAPS, {"metadata": {"name": name}, "data": data, "binaryData": binary}


def _pod(random: Random, name: str) -> tuple[str, Object]:
    spec = _pod_spec(random)
    spec["initContainers"] = _pod_spec(random)["containers"]
    spec["containers"][0]["args"] = ["--password", _value(random)]
    token = {"vault.example.com/token": _value(random)}
    return PODS, {"metadata": {"name": name, "annotations": token}, "spec": spec}


def _deployment(random: Random, name: str) -> tuple[str, Object]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": _pod_spec(random)}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec}


def _pod_spec(random: Random) -> Object:
    env = [{"name": f"E{n}", "value": _value(random)} for n in range(random.randint(1, 3))]
    return {"containers": [{"name": "main", "image": VISIBLE, "env": env}]}


def _needles() -> re.Pattern[bytes]:
    """The canary, and what base64 makes of it wherever it begins."""
    encoded = [
        base64.b64encode(b"\0" * at + CANARY.encode())[4 if at else 0 : 12] for at in (0, 1, 2)
    ]
    return re.compile(b"|".join([CANARY.encode(), *encoded]))


_PATTERN = _needles()


def hits(place: str, content: bytes | str) -> list[str]:
    """Where a canary shows, with what stands around it."""
    raw = content.encode() if isinstance(content, str) else content
    return [
        f"{place} at {match.start()}: {raw[max(0, match.start() - 60) : match.end() + 20]!r}"
        for match in _PATTERN.finditer(raw)
    ]


def hits_below(folder: Path) -> list[str]:
    """The same in every file of a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [hit for path in files for hit in hits(str(path), path.read_bytes())]


def is_visible(folder: Path) -> bool:
    """Whether the files of a folder hold what may be seen."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return any(VISIBLE.encode() in path.read_bytes() for path in files)
