"""The schemas of OpenAPI documents: one for each message and each custom resource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.encoding import messages
from fleetbus_emulator.apiserver.encoding.messages import ALIASES, META, Field, Message
from fleetbus_emulator.apiserver.json_tree import mapping

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]
GVK = "x-kubernetes-group-version-kind"
SELECTABLE = "x-kubernetes-selectable-fields"
PRESERVE = "x-kubernetes-preserve-unknown-fields"
OBJECT_META = f"{META}.ObjectMeta"
API_VERSION = "The group and version of the API that this object is written in."
KIND = "The type of the object."
SCALARS: dict[str, JsonObject] = {
    "string": {"type": "string"},
    "bytes": {"type": "string", "format": "byte"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
}
_TEXTS: JsonObject = {"type": "array", "items": {"type": "string"}}
# Messages that are something else in JSON.
SPECIAL: dict[str, JsonObject] = {
    f"{META}.Time": {"type": "string", "format": "date-time"},
    f"{META}.MicroTime": {"type": "string", "format": "date-time"},
    f"{META}.FieldsV1": {"type": "object"},
    f"{ALIASES['resource']}.Quantity": {"type": "string"},
    f"{ALIASES['runtime']}.RawExtension": {"type": "object"},
    "k8s.io.api.authentication.v1.ExtraValue": _TEXTS,
    "k8s.io.api.authorization.v1.ExtraValue": _TEXTS,
}
INT_OR_STRING = f"{ALIASES['intstr']}.IntOrString"
NUMBER_OR_TEXT: dict[int, JsonObject] = {
    2: {"type": "string", "format": "int-or-string"},
    3: {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
}
PREFIXES = {2: "#/definitions/", 3: "#/components/schemas/"}
# Where a strategic merge drops the fields that the patch does not name (one of many, as a volume's
# source is).
RETAIN_KEYS = frozenset(
    {("PodSpec", "volumes"), ("PodSpec", "resourceClaims"), ("DeploymentSpec", "strategy")}
)


class Schemas:
    """Collects the schemas of types and of all that they consist of.

    Args:
        openapi: The version of OpenAPI, 2 or 3: they refer to schemas differently.

    Attributes:
        found: The schemas by name.
    """

    def __init__(self, *, openapi: int) -> None:
        self._version = openapi
        self._prefix = PREFIXES[openapi]
        self.found: dict[str, JsonObject] = {}

    def of(self, entry: Served) -> JsonObject:
        """A reference to the schema of a served type."""
        name = _schema_name(entry)
        if name not in self.found:
            self.found[name] = self._kind(entry)
        return {"$ref": self._prefix + name}

    def _kind(self, entry: Served) -> JsonObject:
        gvk = {
            "group": entry.rtype.group,
            "kind": entry.rtype.kind,
            "version": entry.version.name,
        }
        message = messages.of_kind(entry.api_version, entry.rtype.kind)
        if entry.version.schema is not None:
            schema = entry.version.schema.source
        elif message is not None:
            schema = {"description": message.description, **self._message(message)}
        else:
            schema: JsonObject = {"type": "object", PRESERVE: True}
        head: JsonObject = {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "metadata": self._reference(messages.message(OBJECT_META)),
        }
        properties = {**mapping(schema, "properties"), **head}
        result = {**schema, "properties": dict(sorted(properties.items())), GVK: [gvk]}
        if entry.version.selectable:
            result[SELECTABLE] = [{"fieldPath": path} for path in entry.version.selectable]
        return result

    def _reference(self, target: Message) -> JsonObject:
        name = _reversed(target.full_name)
        if name not in self.found:
            self.found[name] = self._message(target)
        reference = {"$ref": self._prefix + name}
        if not target.description:
            return reference
        # In version 3 a reference has no siblings.
        referring: JsonObject = reference if self._version == 2 else {"allOf": [reference]}  # noqa: PLR2004
        return {"description": target.description, **referring}

    def _message(self, message: Message) -> JsonObject:
        if message.full_name == INT_OR_STRING:
            return NUMBER_OR_TEXT[self._version]
        if message.full_name in SPECIAL:
            return SPECIAL[message.full_name]
        fields = messages.json_fields(message.full_name)
        properties = {name: self._field(message, entry) for name, entry in sorted(fields.items())}
        return {"type": "object", "properties": properties}

    def _field(self, owner: Message, entry: Field) -> JsonObject:
        if entry.scalar:
            value = dict(SCALARS[entry.type])
        else:
            value = self._reference(messages.message(entry.type))
        if not entry.is_map and not entry.is_list:
            return value | _strategy(owner, entry)
        described = {"description": value.pop("description")} if "description" in value else {}
        if entry.is_map:
            return {**described, "type": "object", "additionalProperties": value}
        listed = {**described, "type": "array", "items": value}
        return listed | _merging(entry) | _strategy(owner, entry)


def _merging(entry: Field) -> JsonObject:
    """The merge extensions of a list in OpenAPI."""
    if entry.keys is None:
        return {"x-kubernetes-list-type": "atomic"}
    if not entry.keys:
        return {"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}
    return {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": list(entry.keys),
        "x-kubernetes-patch-merge-key": entry.keys[0],
        "x-kubernetes-patch-strategy": "merge",
    }


def _strategy(owner: Message, entry: Field) -> JsonObject:
    if (owner.name, entry.name) not in RETAIN_KEYS:
        return {}
    return {"x-kubernetes-patch-strategy": "merge,retainKeys" if entry.keys else "retainKeys"}


def _reversed(full_name: str) -> str:
    """`k8s.io.api.core.v1.Pod` as OpenAPI calls it: `io.k8s.api.core.v1.Pod`."""
    return full_name.replace("k8s.io.", "io.k8s.", 1)


def _schema_name(entry: Served) -> str:
    message = messages.of_kind(entry.api_version, entry.rtype.kind)
    if message is not None:
        return _reversed(message.full_name)
    group = ".".join(reversed(entry.rtype.group.split(".")))
    return f"{group}.{entry.version.name}.{entry.rtype.kind}"
