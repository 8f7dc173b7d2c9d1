"""Prints plans, as text for a person and as JSON for a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from fleetbus.process import printer
from fleetbus_distributor.preview.preview import Action, ClusterPlan, PlannedObject, Preview
from fleetbus_distributor.render.template import ObjectRef
from fleetbus_distributor.targets.outcome import State

_SIGNS: Final[Mapping[Action, str]] = {
    Action.CREATE: "+",
    Action.CHANGE: "~",
    Action.RECREATE: "±",
    Action.DELETE: "-",
    Action.RELEASE: "=",
}
_STYLES: Final[Mapping[str, printer.Style]] = {
    "+": "green",
    "-": "red",
    "~": "yellow",
    "±": "yellow",
    "!": "magenta",
}
_UNCHECKED: Final = " (not checked: its namespace or type does not exist yet)"


def print_plan(plan: Preview) -> None:
    """Print a plan for a person."""
    for line in _lines(plan):
        printer.line(line, style=_style_of(line))


def _style_of(line: str) -> printer.Style:
    return _STYLES.get(line.strip()[:1], "") if line.startswith(" ") else ""


def describe(plan: Preview) -> dict[str, Any]:
    """Write a plan for a program."""
    return {
        "namespace": plan.namespace,
        "name": plan.name,
        "problem": plan.problem,
        "warnings": plan.warnings,
        "hasChanges": plan.has_changes,
        "rollout": plan.status.get("rollout"),
        "clusters": [_describe_cluster(cluster) for cluster in plan.clusters],
    }


def _describe_cluster(plan: ClusterPlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "unchanged": plan.unchanged,
        "objects": [
            {
                **_describe_object(item.ref),
                "action": item.action.value,
                "checked": item.is_checked,
                "diff": list(item.diff),
            }
            for item in plan.objects
        ],
        "findings": [
            {
                **(_describe_object(finding.ref) if finding.ref else {}),
                "state": finding.state.value,
                "reason": finding.reason,
                "message": finding.message,
            }
            for finding in plan.findings
        ],
    }


def _describe_object(ref: ObjectRef) -> dict[str, str]:
    return {
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "namespace": ref.namespace,
        "name": ref.name,
    }


def _lines(plan: Preview) -> Iterator[str]:
    yield f"MultiClusterResource {plan.namespace}/{plan.name}: {_summary(plan)}"
    if plan.problem:
        yield f"! {plan.problem}"
    yield from (f"! warning: {warning}" for warning in plan.warnings)
    yield from _waves(plan.status.get("rollout") or {})
    for cluster in plan.clusters:
        if cluster.objects or cluster.findings:
            yield ""
            yield from _cluster(cluster)


def _summary(plan: Preview) -> str:
    counts = dict.fromkeys(Action, 0)
    for cluster in plan.clusters:
        for item in cluster.objects:
            counts[item.action] += 1
    parts = [f"{count} to {action}" for action, count in counts.items() if count]
    states = Counter(
        state for cluster in plan.clusters for state in {each.state for each in cluster.findings}
    )
    if not parts and not plan.has_errors:
        parts = ["nothing to do"]
    parts += [f"{states[state]} {state.value.lower()}" for state in State if states[state]]
    unchanged = sum(cluster.unchanged for cluster in plan.clusters)
    return ", ".join([*parts, f"{unchanged} unchanged"])


def _waves(rollout: Mapping[str, Any]) -> Iterator[str]:
    for wave in cast("list[dict[str, Any]]", rollout.get("waves") or []):
        names = ", ".join(wave.get("clusters") or []) or "no cluster"
        yield f"  wave {wave.get('name')}: {wave.get('phase')} ({names})"


def _cluster(plan: ClusterPlan) -> Iterator[str]:
    yield f"{plan.name}:"
    for item in plan.objects:
        yield from _object(item)
    for finding in plan.findings:
        reason = "" if finding.reason == finding.state.value else f" ({finding.reason})"
        yield f"  ! {finding.state.value.lower()}{reason}: {finding.message}"


def _object(planned: PlannedObject) -> Iterator[str]:
    note = "" if planned.is_checked else _UNCHECKED
    if planned.action is Action.CHANGE and not planned.diff:
        note += " (only who owns its fields)"
    ref = planned.ref
    name = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
    yield f"  {_SIGNS[planned.action]} {planned.action} {ref.kind} {name}{note}"
    yield from (f"      {line}" for line in planned.diff)
