"""The rows of what makes pods."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver.columns import ages
from fleetbus_emulator.apiserver.columns.pods import template_cells
from fleetbus_emulator.apiserver.columns.printed import (
    NONE,
    UNSET,
    Printed,
    Row,
    labels,
    printed,
    selector,
)
from fleetbus_emulator.apiserver.json_tree import listing, mapping

JsonObject = dict[str, Any]
TEMPLATE = "Containers, Images, Selector"
COUNTS = "Desired, Current, Ready"
# How far a Job is, in the order in which the conditions count; deletion comes behind the second.
JOB_ENDS, JOB_STATES = (
    {"Complete": "Complete", "Failed": "Failed"},
    {"Suspended": "Suspended", "FailureTarget": "FailureTarget"},
)
MOST_METRICS = 2


def _template(row: Row) -> list[str]:
    containers = listing(row.spec, "template", "spec", "containers")
    return [*template_cells(containers), selector(mapping(row.spec, "selector"))]


def _deployment(row: Row) -> list[Any]:
    status = row.status
    ready = f"{status.get('readyReplicas', 0)}/{row.spec.get('replicas', 0)}"
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    return [ready, str(updated), str(available), row.age, *_template(row)]


def _counts(row: Row) -> list[Any]:
    status = row.status
    desired = row.spec.get("replicas", 0)
    return [desired, status.get("replicas", 0), status.get("readyReplicas", 0), row.age]


def _replication_controller(row: Row) -> list[Any]:
    return [*_counts(row), *_template(row)[:2], labels(mapping(row.spec, "selector"))]


def _stateful_set(row: Row) -> list[Any]:
    ready = f"{row.status.get('readyReplicas', 0)}/{row.spec.get('replicas', 0)}"
    return [ready, row.age, *_template(row)[:2]]


def _daemon_set(row: Row) -> list[Any]:
    names = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    nodes = labels(mapping(row.spec, "template", "spec", "nodeSelector"))
    return [*(row.status.get(name, 0) for name in names), nodes, row.age, *_template(row)]


def _revision(row: Row) -> list[Any]:
    nobody: JsonObject = {}
    owners = listing(row.meta, "ownerReferences")
    owner: JsonObject = next((o for o in owners if o.get("controller")), nobody)
    group = owner.get("apiVersion", "").rpartition("/")[0]
    kind = f"{owner.get('kind', '').lower()}{'.' + group if group else ''}"
    controller = f"{kind}/{owner.get('name', '')}" if owner else NONE
    return [controller, row.obj.get("revision", 0), row.age]


def _job_state(row: Row) -> str:
    conditions = listing(row.status, "conditions")
    types = {c.get("type") for c in conditions if c.get("status") == "True"}
    state = next((text for name, text in JOB_ENDS.items() if name in types), None)
    if state or row.deleting:
        return state or "Terminating"
    return next((text for name, text in JOB_STATES.items() if name in types), "Running")


def _job(row: Row) -> list[Any]:
    succeeded, parallel = row.status.get("succeeded", 0), row.spec.get("parallelism") or 0
    completions = f"{succeeded}/{row.spec.get('completions') or 1}"
    if row.spec.get("completions") is None and parallel > 1:
        completions = f"{succeeded}/1 of {parallel}"
    started, completed = row.status.get("startTime"), row.status.get("completionTime")
    lasted = ""
    if started:
        lasted = ages.between(started, completed) if completed else row.since(started)
    return [_job_state(row), completions, lasted, row.age, *_template(row)]


def _cron_job(row: Row) -> list[Any]:
    spec, last = row.spec, row.status.get("lastScheduleTime")
    job = mapping(spec, "jobTemplate", "spec")
    return [
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        str(spec["suspend"]) if "suspend" in spec else UNSET,
        len(listing(row.status, "active")),
        row.since(last) if last else NONE,
        row.age,
        *template_cells(listing(job, "template", "spec", "containers")),
        selector(mapping(job, "selector")),
    ]


def _metric(spec: JsonObject, status: JsonObject) -> str:
    """A metric as current/target."""
    name = str(spec.get("type", ""))
    field = name[:1].lower() + name[1:]
    target, current = mapping(spec, field, "target"), mapping(status, field, "current")
    resource = f"{mapping(spec, field).get('name', '')}: " if "Resource" in name else ""
    average = " (avg)" if name in ("Object", "External") and "averageValue" in target else ""
    if "Resource" in name and "averageValue" not in target:
        used, aim = current.get("averageUtilization"), target.get("averageUtilization")
        percent = "<unknown>" if used is None else f"{used}%"
        return f"{resource}{percent}/{'<auto>' if aim is None else f'{aim}%'}"
    key = "averageValue" if "averageValue" in target else "value"
    return f"{resource}{current.get(key, '<unknown>')}/{target.get(key, '')}{average}"


def _autoscaler(row: Row) -> list[Any]:
    specs, statuses = listing(row.spec, "metrics"), listing(row.status, "currentMetrics")
    empty: JsonObject = {}
    statuses = [*statuses, *[empty] * len(specs)]
    metrics = [_metric(metric, statuses[index]) for index, metric in enumerate(specs)]
    text = ", ".join(metrics[:MOST_METRICS])
    if len(metrics) > MOST_METRICS:
        text += f" + {len(metrics) - MOST_METRICS} more..."
    target = mapping(row.spec, "scaleTargetRef")
    return [
        f"{target.get('kind', '')}/{target.get('name', '')}",
        text or NONE,
        str(row.spec.get("minReplicas", UNSET)),
        row.spec.get("maxReplicas", 0),
        row.status.get("currentReplicas", 0),
        row.age,
    ]


def _budget(row: Row) -> list[Any]:
    least, most = row.spec.get("minAvailable"), row.spec.get("maxUnavailable")
    return [
        "N/A" if least is None else str(least),
        "N/A" if most is None else str(most),
        row.status.get("disruptionsAllowed", 0),
        row.age,
    ]


COLUMNS: dict[tuple[str, str], Printed] = {
    ("apps", "Deployment"): printed(
        "Ready, Up-to-date, Available, Age", _deployment, wide=TEMPLATE
    ),
    ("apps", "ReplicaSet"): printed(
        f"{COUNTS}, Age",
        lambda row: [*_counts(row), *_template(row)],
        wide=TEMPLATE,
        integers=COUNTS,
    ),
    ("", "ReplicationController"): printed(
        f"{COUNTS}, Age", _replication_controller, wide=TEMPLATE, integers=COUNTS
    ),
    ("apps", "StatefulSet"): printed("Ready, Age", _stateful_set, wide="Containers, Images"),
    ("apps", "DaemonSet"): printed(
        f"{COUNTS}, Up-to-date, Available, Node Selector, Age",
        _daemon_set,
        wide=TEMPLATE,
        integers=f"{COUNTS}, Up-to-date, Available",
    ),
    ("apps", "ControllerRevision"): printed("Controller, Revision, Age", _revision),
    ("batch", "Job"): printed("Status, Completions, Duration, Age", _job, wide=TEMPLATE),
    ("batch", "CronJob"): printed(
        "Schedule, Timezone, Suspend, Active, Last Schedule, Age",
        _cron_job,
        wide=TEMPLATE,
        integers="Active",
        booleans="Suspend",
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): printed(
        "Reference, Targets, MinPods, MaxPods, Replicas, Age", _autoscaler
    ),
    ("autoscaling", "Scale"): printed(
        "Desired, Available, Age",
        lambda row: [row.spec.get("replicas", 0), row.status.get("replicas", 0), row.age],
        integers="Desired, Available",
    ),
    ("policy", "PodDisruptionBudget"): printed(
        "Min Available, Max Unavailable, Allowed Disruptions, Age",
        _budget,
        integers="Allowed Disruptions",
    ),
}
