"""The columns of what makes Pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fleetbus.kube.json_fields import Tree, first_maps, look, number, text
from fleetbus.process.human_time import parse_time
from fleetbus_query_api.tables.cells import (
    TEMPLATE,
    at,
    count,
    is_true,
    labels,
    selector,
    size,
    template_columns,
)
from fleetbus_query_api.tables.column import (
    AGE,
    INVALID,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Cell,
    Column,
    column,
    duration,
    since,
    wide,
)

_MAX_METRICS: Final = 2
_NIL: Final = "<nil>"
"""Kubernetes shows a quantity that is absent where its kind of metric has one."""
_AVERAGED: Final = ("Object", "External")
_RESOURCES: Final = ("Resource", "ContainerResource")
_JOB_STATES: Final = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def _of(ready: tuple[str, ...], desired: tuple[str, ...]) -> Callable[[Tree], str]:
    return lambda tree: f"{number(tree, *ready)}/{number(tree, *desired)}"


def _has(job: Tree, condition: str) -> bool:
    return is_true(job, "status", "conditions", kind=condition)


def _job_status(job: Tree) -> str:
    for end in ("Complete", "Failed"):
        if _has(job, end):
            return end
    if look(job, "metadata", "deletionTimestamp"):
        return "Terminating"
    return next((state for state in _JOB_STATES if _has(job, state)), "Running")


def _completions(job: Tree) -> str:
    succeeded = number(job, "status", "succeeded")
    if look(job, "spec", "completions") is not None:
        return f"{succeeded}/{number(job, 'spec', 'completions')}"
    parallel = number(job, "spec", "parallelism")
    return f"{succeeded}/1 of {parallel}" if parallel > 1 else f"{succeeded}/1"


def _lasted(job: Tree) -> str:
    start = parse_time(look(job, "status", "startTime"))
    if start is None:
        return ""
    end = parse_time(look(job, "status", "completionTime"))
    return since(start.isoformat()) if end is None else duration((end - start).total_seconds())


def _suspend(cron_job: Tree) -> str:
    value = look(cron_job, "spec", "suspend")
    return str(value) if isinstance(value, bool) else UNSET


def _last_schedule(cron_job: Tree) -> str:
    last = look(cron_job, "status", "lastScheduleTime")
    return since(last) if last else NONE


def _controller(revision: Tree) -> str:
    owners = first_maps(revision, "metadata", "ownerReferences")
    owner = next((reference for reference in owners if reference.get("controller")), None)
    if owner is None:
        return NONE
    group = text(owner, "apiVersion").rpartition("/")[0]
    kind = text(owner, "kind").lower()
    return f"{kind}{'.' if group else ''}{group}/{text(owner, 'name')}"


def _metric(spec: Tree, status: Tree) -> str:
    """Render a metric as current/target."""
    kind = text(spec, "type")
    field = kind[:1].lower() + kind[1:]
    if kind not in (*_AVERAGED, *_RESOURCES, "Pods"):
        return "<unknown type>"
    target, current = look(spec, field, "target"), look(status, field, "current")
    name = f"{text(spec, field, 'name')}: " if kind in _RESOURCES else ""
    has_average = look(target, "averageValue") is not None
    if kind in _RESOURCES and not has_average:
        used, aim = look(current, "averageUtilization"), look(target, "averageUtilization")
        percent = UNKNOWN if used is None else f"{used}%"
        return f"{name}{percent}/{'<auto>' if aim is None else f'{aim}%'}"
    key = "averageValue" if has_average or kind == "Pods" else "value"
    is_unknown = look(status, field) is None or (has_average and kind in _AVERAGED)
    absent = UNKNOWN if is_unknown else _NIL
    value = text(current, key) or absent
    average = " (avg)" if has_average and kind in _AVERAGED else ""
    return f"{name}{value}/{text(target, key) or _NIL}{average}"


def _targets(autoscaler: Tree) -> str:
    specs = first_maps(autoscaler, "spec", "metrics")
    statuses: list[Tree] = [*first_maps(autoscaler, "status", "currentMetrics")]
    statuses += [{}] * (len(specs) - len(statuses))
    metrics = [_metric(*pair) for pair in zip(specs, statuses, strict=False)]
    more = len(metrics) - _MAX_METRICS
    listed = ", ".join(metrics[:_MAX_METRICS])
    return f"{listed} + {more} more..." if more > 0 else listed or NONE


def _reference(autoscaler: Tree) -> str:
    target = look(autoscaler, "spec", "scaleTargetRef")
    return f"{text(target, 'kind')}/{text(target, 'name')}"


def _whole(name: str, *path: str) -> Column:
    return column(name, count(*path), type="integer")


def _limit(field: str) -> Callable[[Tree], Cell]:
    return at("spec", field, default="N/A")


_SELECTOR: Final = wide("Selector", selector("spec", "selector"))

COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "apps/deployments": (
        NAME,
        column("Ready", _of(("status", "readyReplicas"), ("spec", "replicas"))),
        column("Up-to-date", count("status", "updatedReplicas")),
        column("Available", count("status", "availableReplicas")),
        AGE,
        *TEMPLATE,
        wide("Selector", selector("spec", "selector", none="", invalid=INVALID)),
    ),
    "apps/replicasets": (
        NAME,
        _whole("Desired", "spec", "replicas"),
        _whole("Current", "status", "replicas"),
        _whole("Ready", "status", "readyReplicas"),
        AGE,
        *TEMPLATE,
        _SELECTOR,
    ),
    "core/replicationcontrollers": (
        NAME,
        _whole("Desired", "spec", "replicas"),
        _whole("Current", "status", "replicas"),
        _whole("Ready", "status", "readyReplicas"),
        AGE,
        *TEMPLATE,
        wide("Selector", labels("spec", "selector")),
    ),
    "apps/statefulsets": (
        NAME,
        column("Ready", _of(("status", "readyReplicas"), ("spec", "replicas"))),
        AGE,
        *TEMPLATE,
    ),
    "apps/daemonsets": (
        NAME,
        _whole("Desired", "status", "desiredNumberScheduled"),
        _whole("Current", "status", "currentNumberScheduled"),
        _whole("Ready", "status", "numberReady"),
        _whole("Up-to-date", "status", "updatedNumberScheduled"),
        _whole("Available", "status", "numberAvailable"),
        column("Node Selector", labels("spec", "template", "spec", "nodeSelector")),
        AGE,
        *TEMPLATE,
        _SELECTOR,
    ),
    "apps/controllerrevisions": (
        NAME,
        column("Controller", _controller),
        column("Revision", count("revision")),
        AGE,
    ),
    "batch/jobs": (
        NAME,
        column("Status", _job_status),
        column("Completions", _completions),
        column("Duration", _lasted),
        AGE,
        *TEMPLATE,
        _SELECTOR,
    ),
    "batch/cronjobs": (
        NAME,
        column("Schedule", at("spec", "schedule")),
        column("Timezone", at("spec", "timeZone", default=NONE)),
        column("Suspend", _suspend, type="boolean"),
        column("Active", size("status", "active"), type="integer"),
        column("Last Schedule", _last_schedule),
        AGE,
        *template_columns("spec", "jobTemplate", "spec", "template", "spec", "containers"),
        wide("Selector", selector("spec", "jobTemplate", "spec", "selector")),
    ),
    "autoscaling/horizontalpodautoscalers": (
        NAME,
        column("Reference", _reference),
        column("Targets", _targets),
        column("MinPods", at("spec", "minReplicas", default=UNSET)),
        column("MaxPods", count("spec", "maxReplicas")),
        column("Replicas", count("status", "currentReplicas")),
        AGE,
    ),
    "policy/poddisruptionbudgets": (
        NAME,
        column("Min Available", _limit("minAvailable")),
        column("Max Unavailable", _limit("maxUnavailable")),
        _whole("Allowed Disruptions", "status", "disruptionsAllowed"),
        AGE,
    ),
}
