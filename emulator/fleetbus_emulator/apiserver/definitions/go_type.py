"""The form of a definition: which fields it has and of which types, as Go knows them."""

from __future__ import annotations

from fleetbus_emulator.apiserver.encoding.go_types import Form, Leaf, ListOf, MapOf, Struct

STRING, BOOL, INT, FLOAT = Leaf("string"), Leaf("bool"), Leaf("int64"), Leaf("float64")
ANYTHING = Leaf("any")


def _schema_form() -> Struct:
    props = Struct("JSONSchemaProps")
    either = Struct("JSONSchemaPropsOrBool", fields=props.fields, or_bool=True)
    fields: dict[str, Form] = {
        **dict.fromkeys(("id", "$schema", "$ref", "description", "type", "format"), STRING),
        **dict.fromkeys(("title", "pattern"), STRING),
        **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), STRING),
        **dict.fromkeys(("minimum", "maximum", "multipleOf"), FLOAT),
        **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems"), INT),
        **dict.fromkeys(("maxProperties", "minProperties"), INT),
        **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable"), BOOL),
        "x-kubernetes-preserve-unknown-fields": BOOL,
        "x-kubernetes-embedded-resource": BOOL,
        "x-kubernetes-int-or-string": BOOL,
        "x-kubernetes-list-map-keys": ListOf(STRING),
        "x-kubernetes-validations": ListOf(_RULE),
        **dict.fromkeys(("default", "example"), ANYTHING),
        "enum": ListOf(ANYTHING),
        "required": ListOf(STRING),
        "items": Struct("JSONSchemaPropsOrArray", fields=props.fields, or_list=True),
        **dict.fromkeys(("allOf", "oneOf", "anyOf"), ListOf(props)),
        "not": props,
        **dict.fromkeys(("properties", "patternProperties", "definitions"), MapOf(props)),
        **dict.fromkeys(("additionalProperties", "additionalItems"), either),
        "dependencies": MapOf(ANYTHING),
        "externalDocs": Struct("ExternalDocumentation", {"description": STRING, "url": STRING}),
    }
    props.fields.update(fields)
    return props


_RULE = Struct(
    "ValidationRule",
    {
        **dict.fromkeys(("rule", "message", "messageExpression", "reason", "fieldPath"), STRING),
        "optionalOldSelf": BOOL,
    },
)
_NAMES = Struct(
    "CustomResourceDefinitionNames",
    {
        **dict.fromkeys(("plural", "singular", "kind", "listKind"), STRING),
        "shortNames": ListOf(STRING),
        "categories": ListOf(STRING),
    },
)
_SCALE = Struct(
    "CustomResourceSubresourceScale",
    dict.fromkeys(("specReplicasPath", "statusReplicasPath", "labelSelectorPath"), STRING),
)
_COLUMN = Struct(
    "CustomResourceColumnDefinition",
    {
        **dict.fromkeys(("name", "type", "format", "description", "jsonPath"), STRING),
        "priority": Leaf("int32"),
    },
)
_VERSION = Struct(
    "CustomResourceDefinitionVersion",
    {
        "name": STRING,
        **dict.fromkeys(("served", "storage", "deprecated"), BOOL),
        "deprecationWarning": STRING,
        "schema": Struct("CustomResourceValidation", {"openAPIV3Schema": _schema_form()}),
        "subresources": Struct(
            "CustomResourceSubresources",
            {"status": Struct("CustomResourceSubresourceStatus"), "scale": _SCALE},
        ),
        "additionalPrinterColumns": ListOf(_COLUMN),
        "selectableFields": ListOf(Struct("SelectableField", {"jsonPath": STRING})),
    },
)
_SERVICE = Struct(
    "ServiceReference",
    {**dict.fromkeys(("namespace", "name", "path"), STRING), "port": Leaf("int32")},
)
_WEBHOOK = Struct(
    "WebhookConversion",
    {
        "clientConfig": Struct(
            "WebhookClientConfig", {"url": STRING, "service": _SERVICE, "caBundle": STRING}
        ),
        "conversionReviewVersions": ListOf(STRING),
    },
)
_SPEC = Struct(
    "CustomResourceDefinitionSpec",
    {
        "group": STRING,
        "names": _NAMES,
        "scope": STRING,
        "versions": ListOf(_VERSION),
        "conversion": Struct("CustomResourceConversion", {"strategy": STRING, "webhook": _WEBHOOK}),
        "preserveUnknownFields": BOOL,
    },
)
_CONDITION = Struct(
    "CustomResourceDefinitionCondition",
    {
        **dict.fromkeys(("type", "status", "lastTransitionTime", "reason", "message"), STRING),
        "observedGeneration": INT,
    },
)
_STATUS = Struct(
    "CustomResourceDefinitionStatus",
    {
        "conditions": ListOf(_CONDITION),
        "acceptedNames": _NAMES,
        "storedVersions": ListOf(STRING),
        "observedGeneration": INT,
    },
)
DEFINITION = Struct(
    "CustomResourceDefinition",
    {"apiVersion": STRING, "kind": STRING, "metadata": ANYTHING, "spec": _SPEC, "status": _STATUS},
)
