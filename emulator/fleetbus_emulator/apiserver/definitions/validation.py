"""Validation of a definition: names, versions, columns, subresources, immutable fields."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import orjson

from fleetbus_emulator.apiserver.definitions import schema_validation
from fleetbus_emulator.apiserver.definitions.selectable_fields import selectable_problems
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.field_errors import forbidden, invalid, required, unsupported
from fleetbus_emulator.apiserver.types.object_meta import label_1035_problems, subdomain_problems

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.errors import Cause

JsonObject = dict[str, Any]
COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
LONGEST_DEPRECATION = 256
APPROVAL = "api-approved.kubernetes.io"
APPROVAL_RULES = "https://github.com/kubernetes/enhancements/pull/1111"
HOISTED = ("schema", "subresources", "additionalPrinterColumns")


def definition_problems(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    """Validate a definition; `old` is None on create."""
    spec: JsonObject = mapping(obj, "spec")
    names: JsonObject = mapping(spec, "names")
    causes: list[Cause] = []
    name = obj["metadata"].get("name")
    if name and name != f"{names.get('plural', '')}.{spec.get('group', '')}":
        causes.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    causes += _spec_problems(spec)
    causes += _approval_problems(obj, old)
    if old is not None:
        causes += _immutable(spec, mapping(old, "spec"), established=is_established(old))
    return causes + _stored_problems(obj, listing(spec, "versions"))


def is_established(definition: JsonObject) -> bool:
    """Whether the definition's resource is served."""
    conditions: list[JsonObject] = listing(definition, "status", "conditions")
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


def _spec_problems(spec: JsonObject) -> list[Cause]:
    group, scope = spec.get("group") or "", spec.get("scope") or ""
    causes: list[Cause] = []
    if not group:
        causes.append(required("spec.group"))
    elif problems := subdomain_problems(group):
        causes.append(invalid("spec.group", group, ",".join(problems)))
    elif "." not in group:
        causes.append(invalid("spec.group", group, "should be a domain with at least one dot"))
    if not scope:
        causes.append(required("spec.scope"))
    elif scope not in ("Cluster", "Namespaced"):
        causes.append(unsupported("spec.scope", scope, ("Cluster", "Namespaced")))
    if spec.get("preserveUnknownFields"):
        why = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in "
            "spec.versions[*].schema instead"
        )
        causes.append(invalid("spec.preserveUnknownFields", True, why))
    causes += _versions_problems(listing(spec, "versions"))
    causes += _names_problems(mapping(spec, "names"))
    return causes + _conversion_problems(mapping(spec, "conversion"))


def _approval_problems(obj: JsonObject, old: JsonObject | None) -> list[Cause]:
    """The groups of Kubernetes itself are for definitions that its reviewers have seen."""
    group = str(mapping(obj, "spec").get("group") or "")
    if not f".{group}".endswith((".k8s.io", ".kubernetes.io")):
        return []
    approval: str | None = mapping(obj, "metadata", "annotations").get(APPROVAL)
    if old is not None and approval == mapping(old, "metadata", "annotations").get(APPROVAL):
        return []
    place, why = f"metadata.annotations[{APPROVAL}]", f'must have approval annotation "{APPROVAL}"'
    if not approval:
        return [required(place, f"protected groups {why}, see {APPROVAL_RULES}")]
    address = _address(approval)
    if approval.startswith("unapproved") or (address.scheme and address.netloc):
        return []
    kinds = 'with either a URL or a reason starting with "unapproved"'
    return [invalid(place, approval, f"protected groups {why} {kinds}, see {APPROVAL_RULES}")]


def _address(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


# versions ---------------------------------------------------------------------------------------


def _versions_problems(versions: list[JsonObject]) -> list[Cause]:
    causes: list[Cause] = []
    for index, version in enumerate(versions):
        place = f"spec.versions[{index}]"
        if not mapping(version, "schema").get("openAPIV3Schema"):
            causes.append(required(f"{place}.schema.openAPIV3Schema"))
        name = version.get("name") or ""
        if problems := label_1035_problems(name):
            causes.append(invalid(f"{place}.name", name, ",".join(problems)))
        causes += _deprecation_problems(version, f"{place}.deprecationWarning")
    for name in HOISTED:
        causes += _part_problems(versions, name)
    causes += selectable_problems(versions)
    names = [version.get("name") for version in versions]
    if len(set(names)) != len(names):
        causes.append(invalid("spec.versions", versions, "must contain unique version names"))
    if sum(bool(version.get("storage")) for version in versions) != 1:
        why = "must have exactly one version marked as storage version"
        causes.append(invalid("spec.versions", versions, why))
    return causes


def _part_problems(versions: list[JsonObject], name: str) -> list[Cause]:
    """The problems of one part of all versions; what all have in common is reported once.

    Kubernetes keeps such a part above the versions, and its paths say so.
    """
    parts = [version.get(name) for version in versions]
    with_status = [_has_status(version) for version in versions]
    if parts and all(value == parts[0] for value in parts):
        place = "spec.validation" if name == "schema" else f"spec.{name}"
        return _problems_of(name, parts[0], place, with_status=any(with_status))
    return [
        cause
        for index, value in enumerate(parts)
        for cause in _problems_of(
            name, value, f"spec.versions[{index}].{name}", with_status=with_status[index]
        )
    ]


def _has_status(version: JsonObject) -> bool:
    return "status" in mapping(version, "subresources")


def _problems_of(name: str, value: Any, place: str, *, with_status: bool) -> list[Cause]:
    if name == "schema":
        schema: JsonObject = mapping(value, "openAPIV3Schema")
        where = f"{place}.openAPIV3Schema"
        return list(_schema_problems(orjson.dumps(schema), where, with_status=with_status))
    if name == "subresources":
        scale: JsonObject = mapping(value, "scale")
        return _scale_problems(scale, f"{place}.scale") if "scale" in (value or {}) else []
    columns: list[JsonObject] = value or []
    return [
        cause
        for index, column in enumerate(columns)
        for cause in _column_problems(column, f"{place}[{index}]")
    ]


@functools.lru_cache(maxsize=64)
def _schema_problems(document: bytes, place: str, *, with_status: bool) -> tuple[Cause, ...]:
    """Validate a schema once: every cluster of a fleet, and every update, has the same ones."""
    schema: JsonObject = orjson.loads(document)
    return tuple(schema_validation.schema_problems(schema, place, with_status=with_status))


def _deprecation_problems(version: JsonObject, place: str) -> list[Cause]:
    warning = version.get("deprecationWarning")
    if warning is None:
        return []
    if not version.get("deprecated"):
        return [invalid(place, warning, "can only be set for deprecated versions")]
    if len(warning) > LONGEST_DEPRECATION:
        return [invalid(place, warning, f"must be <= {LONGEST_DEPRECATION} characters long")]
    if not warning:
        return [invalid(place, warning, "must not be an empty string")]
    if not warning.isprintable():
        return [invalid(place, warning, "must only contain printable UTF-8 characters")]
    return []


def _scale_problems(scale: JsonObject, place: str) -> list[Cause]:
    causes: list[Cause] = []
    for name, prefixes, location in (
        ("specReplicasPath", (".spec.",), "under .spec"),
        ("statusReplicasPath", (".status.",), "under .status"),
        ("labelSelectorPath", (".spec.", ".status."), "under either .spec or .status"),
    ):
        path, here = scale.get(name) or "", f"{place}.{name}"
        if not path and name != "labelSelectorPath":
            causes.append(required(here))
        elif path and not path.startswith("."):
            causes.append(invalid(here, path, "must be a simple json path starting with ."))
        elif path and not path.startswith(prefixes):
            causes.append(invalid(here, path, f"should be a json path {location}"))
        elif path and not all(path[1:].split(".")):
            causes.append(invalid(here, path, "must be a json path in the dot notation"))
    return causes


def _column_problems(column: JsonObject, place: str) -> list[Cause]:
    causes: list[Cause] = []
    if not column.get("name"):
        causes.append(required(f"{place}.name"))
    type_name, why = column.get("type") or "", f"must be one of {','.join(COLUMN_TYPES)}"
    if not type_name:
        causes.append(required(f"{place}.type", why))
    elif type_name not in COLUMN_TYPES:
        causes.append(invalid(f"{place}.type", type_name, why))
    form = column.get("format")
    if form and form not in COLUMN_FORMATS:
        why = f"must be one of {','.join(COLUMN_FORMATS)}"
        causes.append(invalid(f"{place}.format", form, why))
    path = column.get("jsonPath") or ""
    if not path:
        causes.append(required(f"{place}.JSONPath"))
    elif not path.startswith("."):
        why = "must be a simple json path starting with ."
        causes.append(invalid(f"{place}.JSONPath", path, why))
    return causes


# names ------------------------------------------------------------------------------------------


def _names_problems(names: JsonObject) -> list[Cause]:
    place = "spec.names"
    required_names = ("plural", "singular", "kind", "listKind")
    causes = [required(f"{place}.{name}") for name in required_names if not names.get(name)]
    for name in required_names:
        text = names.get(name) or ""
        mixed = name in {"kind", "listKind"}
        problems = label_1035_problems(text.lower() if mixed else text)
        if text and problems:
            prefix = "may have mixed case, but should otherwise match: " if mixed else ""
            causes.append(invalid(f"{place}.{name}", text, prefix + ",".join(problems)))
    for name in ("shortNames", "categories"):
        for index, text in enumerate(listing(names, name)):
            if problems := label_1035_problems(text):
                causes.append(invalid(f"{place}.{name}[{index}]", text, ",".join(problems)))
    if names.get("kind") and names["kind"] == names.get("listKind"):
        why = "kind and listKind may not be the same"
        causes.append(invalid(f"{place}.listKind", names["listKind"], why))
    return causes


def _conversion_problems(conversion: JsonObject) -> list[Cause]:
    place, strategy = "spec.conversion", conversion.get("strategy") or ""
    if not strategy:
        return [required(f"{place}.strategy")]
    if strategy not in {"None", "Webhook"}:
        return [unsupported(f"{place}.strategy", strategy, ("None", "Webhook"))]
    webhook: JsonObject = mapping(conversion, "webhook")
    if strategy == "None":
        why = "should not be set when strategy is not set to Webhook"
        return [forbidden(f"{place}.webhook", why)] if webhook else []
    causes: list[Cause] = []
    client: JsonObject = mapping(webhook, "clientConfig")
    if not client:
        why = "required when strategy is set to Webhook"
        causes.append(required(f"{place}.webhookClientConfig", why))
    elif ("url" in client) == ("service" in client):
        why = "exactly one of url or service is required"
        causes.append(required(f"{place}.webhookClientConfig", why))
    if not listing(webhook, "conversionReviewVersions"):
        causes.append(required(f"{place}.conversionReviewVersions"))
    return causes


# changes ----------------------------------------------------------------------------------------


def _immutable(spec: JsonObject, old: JsonObject, *, established: bool) -> list[Cause]:
    fixed = [("group",), ("names", "plural")]
    if established:
        fixed = [("scope",), ("names", "kind"), *fixed]
    causes: list[Cause] = []
    for path in fixed:
        *above, name = path
        value = mapping(spec, *above).get(name)
        if value != mapping(old, *above).get(name):
            causes.append(invalid(".".join(("spec", *path)), value, "field is immutable"))
    return causes


def _stored_problems(obj: JsonObject, versions: list[JsonObject]) -> list[Cause]:
    place, stored = "status.storedVersions", listing(obj, "status", "storedVersions")
    if not stored:
        return [invalid(place, [], "must have at least one stored version")]
    present = {version.get("name") for version in versions}
    storage = next((v.get("name") for v in versions if v.get("storage")), None)
    causes: list[Cause] = []
    if storage is not None and storage not in stored:
        causes.append(invalid(place, stored, f"must have the storage version {storage}"))
    for index, name in enumerate(stored):
        if name not in present:
            why = (
                f"missing from spec.versions; {name} was previously a storage version, and must "
                "remain in spec.versions until a storage migration ensures no data remains "
                f"persisted in {name} and removes {name} from status.storedVersions"
            )
            causes.append(invalid(f"{place}[{index}]", name, why))
    return causes
