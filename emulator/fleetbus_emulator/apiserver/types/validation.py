"""Validation of the built-in types: rejects the mistakes that clients expect an error for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.auth import roles
from fleetbus_emulator.apiserver.errors import Cause
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.cron import schedule_causes
from fleetbus_emulator.apiserver.types.field_errors import invalid
from fleetbus_emulator.apiserver.types.services import target_port_problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetbus_emulator.apiserver.types.resource import ResourceType

JsonObject = dict[str, Any]
SELECTED = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"})
MUTABLE_POD_FIELDS = frozenset(
    {"activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates"}
)
LARGEST_DATA = 1024 * 1024
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
BAD_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
POD_CHANGE_FORBIDDEN = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` "
    "(only additions to existing tolerations),`spec.terminationGracePeriodSeconds` "
    "(allow it to be set to 1 if it was previously negative)"
)


def problems(rtype: ResourceType, obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    """Validate a built-in object; `old` is None on create."""
    if rtype.group == "apps" and rtype.kind in SELECTED:
        return _workload(obj, old)
    check = _CHECKS.get((rtype.group, rtype.kind))
    return check(obj, old) if check else []


def _required(field: str, why: str = "Required value") -> Cause:
    return Cause(field, why, "FieldValueRequired")


def _shown(value: JsonObject) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _containers(spec: JsonObject, field: str) -> list[Cause]:
    containers = spec.get("containers")
    if not containers:
        return [_required(f"{field}.containers")]
    causes: list[Cause] = []
    names: set[str] = set()
    for index, container in enumerate(containers):
        name = container.get("name") or ""
        place = f"{field}.containers[{index}]"
        if not name:
            causes.append(_required(f"{place}.name"))
        elif name in names:
            duplicate = f'Duplicate value: "{name}"'
            causes.append(Cause(f"{place}.name", duplicate, "FieldValueDuplicate"))
        if not container.get("image"):
            causes.append(_required(f"{place}.image"))
        names.add(name)
    return causes


def selector_matches(selector: JsonObject, labels: JsonObject) -> bool:
    """Whether a LabelSelector selects the labels."""
    if any(labels.get(k) != v for k, v in (mapping(selector, "matchLabels")).items()):
        return False
    return all(_expression_holds(e, labels) for e in listing(selector, "matchExpressions"))


def _expression_holds(expression: JsonObject, labels: JsonObject) -> bool:
    key, values = str(expression.get("key")), listing(expression, "values")
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _workload(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    spec = obj["spec"]
    selector: JsonObject = mapping(spec, "selector")
    template: JsonObject = mapping(spec, "template")
    labels: JsonObject = mapping(template, "metadata", "labels")
    if not selector:
        return [_required("spec.selector")]
    causes: list[Cause] = []
    if not selector_matches(selector, labels):
        why = "`selector` does not match template `labels`"
        message = f"Invalid value: {_shown(labels)}: {why}"
        causes.append(Cause("spec.template.metadata.labels", message))
    if old is not None and (mapping(old["spec"], "selector")) != selector:
        why = f"Invalid value: {_shown(selector)}: field is immutable"
        causes.append(Cause("spec.selector", why))
    if spec.get("replicas", 0) < 0:
        why = "must be greater than or equal to 0"
        causes.append(Cause("spec.replicas", f"Invalid value: {spec['replicas']}: {why}"))
    return causes + _containers(mapping(template, "spec"), "spec.template.spec")


def _pod(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    if old is None:
        return _containers(obj["spec"], "spec")
    if _fixed_part(old["spec"]) == _fixed_part(obj["spec"]):
        return []
    bound = {**old["spec"], "nodeName": obj["spec"].get("nodeName")}
    if not old["spec"].get("nodeName") and _fixed_part(bound) == _fixed_part(obj["spec"]):
        return []
    return [Cause("spec", POD_CHANGE_FORBIDDEN, "FieldValueForbidden")]


def _fixed_part(spec: JsonObject) -> JsonObject:
    fixed = {name: value for name, value in spec.items() if name not in MUTABLE_POD_FIELDS}
    for name in ("containers", "initContainers"):
        fixed[name] = [{**c, "image": None, "imagePullPolicy": None} for c in listing(spec, name)]
    return fixed


def _job(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    spec = obj["spec"]
    template: JsonObject = mapping(spec, "template", "spec")
    causes = _containers(template, "spec.template.spec")
    policy = template.get("restartPolicy")
    if policy not in ("Never", "OnFailure"):
        why = f'Required value: valid values: "OnFailure", "Never" (was "{policy}")'
        causes.append(_required("spec.template.spec.restartPolicy", why))
    if old is not None and not spec.get("suspend") and _immutable_job(old) != _immutable_job(obj):
        causes.append(Cause("spec.template", "Invalid value: field is immutable"))
    return causes


def _immutable_job(obj: JsonObject) -> JsonObject:
    return {name: obj["spec"].get(name) for name in ("selector", "template", "completionMode")}


def _service(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    spec = obj["spec"]
    causes = [
        invalid(f"spec.ports[{at}].targetPort", port["targetPort"], why)
        for at, port in enumerate(listing(spec, "ports"))
        for why in target_port_problems(port.get("targetPort"))
    ]
    if old is None or old["spec"].get("type") == "ExternalName":
        return causes
    before, after = old["spec"].get("clusterIP"), spec.get("clusterIP")
    if not before or before == after or spec.get("type") == "ExternalName":
        return causes
    return [*causes, Cause("spec.clusterIP", f'Invalid value: "{after}": field is immutable')]


def _secret(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    data: JsonObject = mapping(obj, "data")
    causes = _key_problems("data", data)
    if sum(len(value) * 3 // 4 for value in data.values()) > LARGEST_DATA:
        causes.append(_too_long("data"))
    return causes + _immutable_data(obj, old)


def _key_problems(field: str, data: JsonObject) -> list[Cause]:
    return [invalid(f"{field}[{key}]", key, BAD_KEY) for key in data if not _KEY.fullmatch(key)]


def _too_long(field: str) -> Cause:
    why = f"Too long: may not be more than {LARGEST_DATA} bytes"
    return Cause(field, why, "FieldValueTooLong")


def _immutable_data(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    if not old or not old.get("immutable"):
        return []
    why = "Forbidden: field is immutable when `immutable` is set"
    changed = [name for name in ("data", "binaryData", "type") if obj.get(name) != old.get(name)]
    return [Cause(name, why, "FieldValueForbidden") for name in changed]


def _config_map(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    data, binary = mapping(obj, "data"), mapping(obj, "binaryData")
    causes = _key_problems("data", data) + _key_problems("binaryData", binary)
    why = "duplicate of key present in binaryData"
    causes += [invalid(f"data[{key}]", key, why) for key in data if key in binary]
    size = sum(len(value) for value in data.values())
    if size + sum(len(value) * 3 // 4 for value in binary.values()) > LARGEST_DATA:
        causes.append(_too_long("[]"))
    return causes + _immutable_data(obj, old)


def _event(obj: JsonObject, _old: JsonObject | None) -> list[Cause]:
    """An event lies with its object, those of cluster-wide objects in the default namespace."""
    namespace, expected = (
        obj["metadata"].get("namespace"),
        mapping(obj, "involvedObject").get("namespace"),
    )
    if namespace == (expected or "default"):
        return []
    return [invalid("involvedObject.namespace", expected or "", "does not match event.namespace")]


def _autoscaler(obj: JsonObject, _old: JsonObject | None) -> list[Cause]:
    spec = mapping(obj, "spec")
    least, most = spec.get("minReplicas") or 0, spec.get("maxReplicas") or 0
    causes: list[Cause] = []
    if least < 1:
        causes.append(invalid("spec.minReplicas", least, "must be greater than or equal to 1"))
    if most < 1:
        causes.append(invalid("spec.maxReplicas", most, "must be greater than 0"))
    if most < least:
        why = "must be greater than or equal to `minReplicas`"
        causes.append(invalid("spec.maxReplicas", most, why))
    return causes


def _cron_job(obj: JsonObject, _old: JsonObject | None) -> list[Cause]:
    return schedule_causes(mapping(obj, "spec"))


_CHECKS: dict[tuple[str, str], Callable[[JsonObject, JsonObject | None], list[Cause]]] = {
    ("", "Pod"): _pod,
    ("", "Event"): _event,
    ("events.k8s.io", "Event"): _event,
    ("", "Service"): _service,
    ("", "Secret"): _secret,
    ("", "ConfigMap"): _config_map,
    ("autoscaling", "HorizontalPodAutoscaler"): _autoscaler,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    (roles.GROUP, "Role"): roles.role_problems,
    (roles.GROUP, "ClusterRole"): roles.role_problems,
    (roles.GROUP, "RoleBinding"): roles.binding_problems,
    (roles.GROUP, "ClusterRoleBinding"): roles.binding_problems,
}
