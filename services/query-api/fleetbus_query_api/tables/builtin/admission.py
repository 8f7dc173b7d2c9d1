"""The columns of what API servers themselves are configured with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fleetbus.kube.json_fields import Tree, first_maps, look, mapping, text
from fleetbus_query_api.tables.cells import at, count, render_selector, size
from fleetbus_query_api.tables.column import AGE, NAME, NONE, UNSET, Cell, Column, column


def _param_kind(policy: Tree) -> str:
    kind = mapping(policy, "spec", "paramKind")
    return f"{text(kind, 'apiVersion')}/{text(kind, 'kind')}" if kind else UNSET


def _param_ref(binding: Tree) -> str:
    reference = look(binding, "spec", "paramRef")
    if name := text(reference, "name"):
        return f"{text(reference, 'namespace') or '*'}/{name}"
    return render_selector(look(reference, "selector")) or UNSET


def _distinguisher(schema: Tree) -> str:
    method = look(schema, "spec", "distinguisherMethod")
    return NONE if method is None else text(method, "type")


def _is_dangling(schema: Tree) -> str:
    conditions = first_maps(schema, "status", "conditions")
    return next((text(c, "status") for c in conditions if c.get("type") == "Dangling"), "?")


def _service(api: Tree) -> str:
    service = mapping(api, "spec", "service")
    return f"{text(service, 'namespace')}/{text(service, 'name')}" if service else "Local"


def _available(api: Tree) -> str:
    conditions = first_maps(api, "status", "conditions")
    condition = next((c for c in conditions if c.get("type") == "Available"), None)
    if condition is None:
        return "Unknown"
    status, reason = text(condition, "status"), text(condition, "reason")
    return f"{status} ({reason})" if reason and status != "True" else status


def _limited(name: str, *path: str) -> Column:
    def cell(level: Tree) -> Cell:
        value = look(level, "spec", "limited", *path)
        return value if isinstance(value, int) else NONE

    return column(name, cell)


_WEBHOOKS: Final = (NAME, column("Webhooks", size("webhooks"), type="integer"), AGE)
_BINDING: Final = (
    NAME,
    column("PolicyName", at("spec", "policyName")),
    column("ParamRef", _param_ref),
    AGE,
)
_ADMISSION: Final = "admissionregistration.k8s.io"
_FLOW: Final = "flowcontrol.apiserver.k8s.io"


def _policy(rules: str, field: str) -> Sequence[Column]:
    rule_count = column(rules, size("spec", field), type="integer")
    return (NAME, rule_count, column("ParamKind", _param_kind), AGE)


COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    f"{_ADMISSION}/mutatingwebhookconfigurations": _WEBHOOKS,
    f"{_ADMISSION}/validatingwebhookconfigurations": _WEBHOOKS,
    f"{_ADMISSION}/validatingadmissionpolicies": _policy("Validations", "validations"),
    f"{_ADMISSION}/mutatingadmissionpolicies": _policy("Mutations", "mutations"),
    f"{_ADMISSION}/validatingadmissionpolicybindings": _BINDING,
    f"{_ADMISSION}/mutatingadmissionpolicybindings": _BINDING,
    f"{_FLOW}/flowschemas": (
        NAME,
        column("PriorityLevel", at("spec", "priorityLevelConfiguration", "name")),
        column("MatchingPrecedence", count("spec", "matchingPrecedence")),
        column("DistinguisherMethod", _distinguisher),
        AGE,
        column("MissingPL", _is_dangling),
    ),
    f"{_FLOW}/prioritylevelconfigurations": (
        NAME,
        column("Type", at("spec", "type")),
        _limited("NominalConcurrencyShares", "nominalConcurrencyShares"),
        _limited("Queues", "limitResponse", "queuing", "queues"),
        _limited("HandSize", "limitResponse", "queuing", "handSize"),
        _limited("QueueLengthLimit", "limitResponse", "queuing", "queueLengthLimit"),
        AGE,
    ),
    "apiregistration.k8s.io/apiservices": (
        NAME,
        column("Service", _service),
        column("Available", _available),
        AGE,
    ),
}
