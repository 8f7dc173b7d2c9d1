"""The columns that kubectl shows for each resource; only AGE for a resource not listed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from fleetbus.cli.objects import pod_columns
from fleetbus.kube.json_fields import Tree, condition, look, many, number, pairs, text
from fleetbus.process.human_time import parse_time, render_age, render_duration

_JOB_CONDITIONS: Final = ("Complete", "Failed", "Suspended")


class Column(NamedTuple):
    """One column of a table."""

    head: str
    cell: Callable[[Tree], str]
    """Renders the cell of an object."""
    is_wide: bool = False
    """Shown only with `-o wide`."""


def columns_of(resource: str, *, wide: bool) -> Sequence[Column]:
    """Return the columns after CLUSTER, NAMESPACE and NAME.

    Args:
        resource: the resource key, like `core/pods`.
        wide: include the columns of `-o wide`.
    """
    return [column for column in _COLUMNS.get(resource, (_AGE,)) if wide or not column.is_wide]


def _at(*path: str) -> Callable[[Tree], str]:
    return lambda tree: text(tree, *path)


def _count(*path: str) -> Callable[[Tree], str]:
    return lambda tree: str(number(tree, *path))


def _labels(*path: str) -> Callable[[Tree], str]:
    return lambda tree: pairs(tree, *path)


def _age(tree: Tree) -> str:
    return render_age(look(tree, "metadata", "creationTimestamp"))


def _of(
    ready: tuple[str, ...], desired: tuple[str, ...], default: int = 1
) -> Callable[[Tree], str]:
    """Render `<ready>/<desired>`; desired defaults to 1, as in API servers."""

    def cell(tree: Tree) -> str:
        total = default if look(tree, *desired) is None else number(tree, *desired)
        return f"{number(tree, *ready)}/{total}"

    return cell


def _size(tree: Tree) -> str:
    return str(sum(len(look(tree, name) or ()) for name in ("data", "binaryData")))


def _template(field: str) -> Callable[[Tree], str]:
    """Join the names or images of the containers of a workload."""

    def cell(tree: Tree) -> str:
        containers = many(tree, "spec", "template", "spec", "containers")
        return ",".join(text(container, field) for container in containers)

    return cell


def _selector(tree: Tree) -> str:
    """Render a label selector as kubectl does."""
    parts = [pairs(tree, "spec", "selector", "matchLabels")]
    for expression in many(tree, "spec", "selector", "matchExpressions"):
        name, operator = text(expression, "key"), text(expression, "operator")
        values = ",".join(map(str, look(expression, "values") or ()))
        forms = {"Exists": name, "DoesNotExist": f"!{name}"}
        parts.append(forms.get(operator, f"{name} {operator.lower()} ({values})"))
    return ",".join(filter(None, parts))


def _job_status(job: Tree) -> str:
    has = {kind: condition(job, kind).get("status") == "True" for kind in _JOB_CONDITIONS}
    if has["Complete"] or has["Failed"]:
        return "Complete" if has["Complete"] else "Failed"
    if look(job, "metadata", "deletionTimestamp"):
        return "Terminating"
    return "Suspended" if has["Suspended"] else "Running"


def _job_completions(job: Tree) -> str:
    succeeded = number(job, "status", "succeeded")
    desired = look(job, "spec", "completions")
    if desired is not None:
        return f"{succeeded}/{desired}"
    parallel = number(job, "spec", "parallelism")
    return f"{succeeded}/1 of {parallel}" if parallel > 1 else f"{succeeded}/1"


def _job_duration(job: Tree) -> str:
    start = parse_time(text(job, "status", "startTime"))
    if start is None:
        return ""
    end = parse_time(text(job, "status", "completionTime"))
    if end is None:
        return render_age(start.isoformat())
    return render_duration((end - start).total_seconds())


def _external_ip(service: Tree) -> str:
    kind = text(service, "spec", "type")
    if kind == "ExternalName":
        return text(service, "spec", "externalName")
    given: list[str] = list(map(str, look(service, "spec", "externalIPs") or ()))
    if kind == "LoadBalancer":
        found = many(service, "status", "loadBalancer", "ingress")
        given = [text(entry, "ip") or text(entry, "hostname") for entry in found] + given
        return ",".join(given) or "<pending>"
    return ",".join(given)


def _ports(service: Tree) -> str:
    def one(port: Tree) -> str:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        return f"{text(port, 'port')}{node}/{text(port, 'protocol') or 'TCP'}"

    return ",".join(map(one, many(service, "spec", "ports")))


def _node_status(node: Tree) -> str:
    known = condition(node, "Ready").get("status")
    words = ["Ready" if known == "True" else "NotReady" if known else "Unknown"]
    if look(node, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Tree) -> str:
    labels: Tree = look(node, "metadata", "labels") or {}
    prefix = "node-role.kubernetes.io/"
    return ",".join(sorted(n.removeprefix(prefix) for n in labels if n.startswith(prefix)))


def _node_address(kind: str) -> Callable[[Tree], str]:
    def cell(node: Tree) -> str:
        addresses = many(node, "status", "addresses")
        return next((text(a, "address") for a in addresses if a.get("type") == kind), "")

    return cell


def _ingress_hosts(ingress: Tree) -> str:
    return ",".join(text(rule, "host") or "*" for rule in many(ingress, "spec", "rules")) or "*"


def _ingress_address(ingress: Tree) -> str:
    found = many(ingress, "status", "loadBalancer", "ingress")
    return ",".join(text(entry, "ip") or text(entry, "hostname") for entry in found)


def _ingress_ports(ingress: Tree) -> str:
    return "80, 443" if look(ingress, "spec", "tls") else "80"


def _wide(head: str, cell: Callable[[Tree], str]) -> Column:
    return Column(head, cell, is_wide=True)


_AGE: Final = Column("AGE", _age)
_CONTAINERS: Final = (
    _wide("CONTAINERS", _template("name")),
    _wide("IMAGES", _template("image")),
)
_SELECTED: Final = (*_CONTAINERS, _wide("SELECTOR", _selector))

_COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "core/pods": (
        Column("READY", pod_columns.ready),
        Column("STATUS", pod_columns.status),
        Column("RESTARTS", pod_columns.restarts),
        _AGE,
        _wide("IP", _at("status", "podIP")),
        _wide("NODE", _at("spec", "nodeName")),
        _wide("NOMINATED NODE", _at("status", "nominatedNodeName")),
        _wide("READINESS GATES", pod_columns.readiness_gates),
    ),
    "core/configmaps": (Column("DATA", _size), _AGE),
    "core/services": (
        Column("TYPE", _at("spec", "type")),
        Column("CLUSTER-IP", _at("spec", "clusterIP")),
        Column("EXTERNAL-IP", _external_ip),
        Column("PORT(S)", _ports),
        _AGE,
        _wide("SELECTOR", _labels("spec", "selector")),
    ),
    "core/namespaces": (Column("STATUS", _at("status", "phase")), _AGE),
    "core/nodes": (
        Column("STATUS", _node_status),
        Column("ROLES", _node_roles),
        _AGE,
        Column("VERSION", _at("status", "nodeInfo", "kubeletVersion")),
        _wide("INTERNAL-IP", _node_address("InternalIP")),
        _wide("EXTERNAL-IP", _node_address("ExternalIP")),
        _wide("OS-IMAGE", _at("status", "nodeInfo", "osImage")),
        _wide("KERNEL-VERSION", _at("status", "nodeInfo", "kernelVersion")),
        _wide("CONTAINER-RUNTIME", _at("status", "nodeInfo", "containerRuntimeVersion")),
    ),
    "apps/deployments": (
        Column("READY", _of(("status", "readyReplicas"), ("spec", "replicas"))),
        Column("UP-TO-DATE", _count("status", "updatedReplicas")),
        Column("AVAILABLE", _count("status", "availableReplicas")),
        _AGE,
        *_SELECTED,
    ),
    "apps/replicasets": (
        Column("DESIRED", _count("spec", "replicas")),
        Column("CURRENT", _count("status", "replicas")),
        Column("READY", _count("status", "readyReplicas")),
        _AGE,
        *_SELECTED,
    ),
    "apps/statefulsets": (
        Column("READY", _of(("status", "readyReplicas"), ("spec", "replicas"))),
        _AGE,
        *_CONTAINERS,
    ),
    "apps/daemonsets": (
        Column("DESIRED", _count("status", "desiredNumberScheduled")),
        Column("CURRENT", _count("status", "currentNumberScheduled")),
        Column("READY", _count("status", "numberReady")),
        Column("UP-TO-DATE", _count("status", "updatedNumberScheduled")),
        Column("AVAILABLE", _count("status", "numberAvailable")),
        Column(
            "NODE SELECTOR",
            _labels("spec", "template", "spec", "nodeSelector"),
        ),
        _AGE,
        *_SELECTED,
    ),
    "batch/jobs": (
        Column("STATUS", _job_status),
        Column("COMPLETIONS", _job_completions),
        Column("DURATION", _job_duration),
        _AGE,
        *_SELECTED,
    ),
    "fleetbus.dev/multiclusterresources": (
        Column("READY", _at("status", "summary", "ready")),
        Column("STATUS", _at("status", "summary", "reason")),
        _AGE,
    ),
    "networking.k8s.io/ingresses": (
        Column("CLASS", _at("spec", "ingressClassName")),
        Column("HOSTS", _ingress_hosts),
        Column("ADDRESS", _ingress_address),
        Column("PORTS", _ingress_ports),
        _AGE,
    ),
}
