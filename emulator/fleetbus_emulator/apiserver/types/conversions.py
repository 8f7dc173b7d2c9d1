"""Versions of built-in types whose fields differ from those that are stored.

Custom resources need none: without a webhook all their versions have the same fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from fleetbus_emulator.apiserver.json_tree import as_list, as_object, mapping

JsonObject = dict[str, Any]
Convert = Callable[[JsonObject], JsonObject]


@dataclass(frozen=True, slots=True)
class Conversion:
    """Both ways between a served version and what is stored.

    They take the fields of an object without kind and apiVersion, and change nothing in place: the
    stored objects are shared. What a client sent may be of any form; it is checked afterwards.
    """

    to_stored: Convert
    to_served: Convert


def renaming(served_names: dict[str, str]) -> Conversion:
    """Top-level fields that are called otherwise; the names in storage come first."""
    stored_names = {served: stored for stored, served in served_names.items()}
    return Conversion(
        to_stored=lambda fields: {stored_names.get(k, k): v for k, v in fields.items()},
        to_served=lambda fields: {served_names.get(k, k): v for k, v in fields.items()},
    )


EVENTS = renaming(
    {
        "involvedObject": "regarding",
        "message": "note",
        "count": "deprecatedCount",
        "firstTimestamp": "deprecatedFirstTimestamp",
        "lastTimestamp": "deprecatedLastTimestamp",
        "source": "deprecatedSource",
        "reportingComponent": "reportingController",
    }
)

# autoscaling/v1 knows one metric, the use of CPU. What else autoscaling/v2 has is kept in
# annotations, as Kubernetes does.
PREFIX = "autoscaling.alpha.kubernetes.io/"
ANNOTATED = {
    "spec": {"metrics": f"{PREFIX}metrics", "behavior": f"{PREFIX}behavior"},
    "status": {
        "currentMetrics": f"{PREFIX}current-metrics",
        "conditions": f"{PREFIX}conditions",
    },
}
TARGET, CURRENT = "targetCPUUtilizationPercentage", "currentCPUUtilizationPercentage"
UTILIZATION = "averageUtilization"


def _is_cpu(metric: Any) -> bool:
    resource = mapping(metric, "resource")
    return resource.get("name") == "cpu" and any(
        UTILIZATION in mapping(resource, field) for field in ("target", "current")
    )


def _cpu_only(section: JsonObject, metrics: str, field: str, value: str) -> JsonObject:
    """A spec or status whose first CPU metric became a field of its own."""
    all_metrics = as_list(section.get(metrics)) or []
    cpu = next((metric for metric in all_metrics if _is_cpu(metric)), None)
    if cpu is None:
        return section
    others = [metric for metric in all_metrics if metric is not cpu]
    fields = {k: v for k, v in section.items() if k != metrics} | (
        {metrics: others} if others else {}
    )
    return {**fields, field: mapping(cpu, "resource", value)[UTILIZATION]}


def _cpu_among_all(section: JsonObject, metrics: str, field: str, value: JsonObject) -> JsonObject:
    """The reverse."""
    if section.get(field) is None:
        return {k: v for k, v in section.items() if k != field}
    cpu = {"type": "Resource", "resource": {"name": "cpu", **value}}
    fields = {k: v for k, v in section.items() if k != field}
    return {**fields, metrics: [cpu, *(as_list(section.get(metrics)) or [])]}


def _to_v1(fields: JsonObject) -> JsonObject:
    spec = _cpu_only(mapping(fields, "spec"), "metrics", TARGET, "target")
    status = _cpu_only(mapping(fields, "status"), "currentMetrics", CURRENT, "current")
    parts, annotated = {"spec": spec, "status": status}, dict[str, str]()
    for section, names in ANNOTATED.items():
        values = {name: parts[section][name] for name in names if name in parts[section]}
        annotated |= {names[name]: orjson.dumps(value).decode() for name, value in values.items()}
        parts[section] = {k: v for k, v in parts[section].items() if k not in values}
    metadata: JsonObject = fields["metadata"]
    if annotated:
        metadata = {**metadata, "annotations": {**mapping(metadata, "annotations"), **annotated}}
    sections = {name: value for name, value in parts.items() if name in fields}
    return {**fields, "metadata": metadata, **sections}


def _from_v1(fields: JsonObject) -> JsonObject:
    annotations = mapping(fields, "metadata", "annotations")
    parts: JsonObject = {}
    for section, names in ANNOTATED.items():
        content = as_object(fields.get(section))
        if content is not None:
            restored = {n: _parsed(annotations[a]) for n, a in names.items() if a in annotations}
            parts[section] = {**content, **restored}
    if "spec" in parts:
        target = {"type": "Utilization", UTILIZATION: parts["spec"].get(TARGET)}
        parts["spec"] = _cpu_among_all(parts["spec"], "metrics", TARGET, {"target": target})
    if "status" in parts:
        current = {UTILIZATION: parts["status"].get(CURRENT)}
        value: JsonObject = {"current": current}
        parts["status"] = _cpu_among_all(parts["status"], "currentMetrics", CURRENT, value)
    if not any(name.startswith(PREFIX) for name in annotations):
        return {**fields, **parts}
    remaining = {name: text for name, text in annotations.items() if not name.startswith(PREFIX)}
    return {**fields, "metadata": {**fields["metadata"], "annotations": remaining}, **parts}


def _parsed(text: Any) -> Any:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, TypeError):
        return None  # as if it were not there; only we write these annotations


AUTOSCALERS = Conversion(to_stored=_from_v1, to_served=_to_v1)
