"""From a template to the object for one cluster: typed `${…}` substitution, nothing else (D15).

Three expressions exist: `${cluster.name}`, `${cluster.labels.<key>}` and `${vars.<name>}`. There
is no language behind them: no attribute access, no call, no loop, no recursion into what was
substituted. A string that is one expression takes the value's type, so `replicas: "${vars.n}"`
is a number when `vars.n` is one; inside a longer string only scalars fit. Other `${…}` texts, a
shell's `${HOME}` say, stay as they are; `$${cluster.name}` writes the expression literally.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from fleetbus_distributor.errors import RenderError
from fleetbus_distributor.render.spec import Spec

Object = dict[str, Any]

DEFAULT_NAMESPACE = "default"
MAX_BYTES = 1024 * 1024
_MAX_DEPTH = 100
_EXPRESSION = re.compile(r"(\$?)\$\{((?:cluster|vars)\.[^{}]*)\}")
_LABELS = "cluster.labels."
_VARS = "vars."
_SERVER_FIELDS = (
    "managedFields",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "uid",
    # Owners live on the hub: on a target their UIDs mean nothing, and its garbage collector
    # would delete what it cannot find an owner for.
    "ownerReferences",
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object on a target, as the intent names it.

    The version is not part of its identity (`key`): a template that moves from v1beta1 to v1
    means the same object.
    """

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Group, kind, namespace, name."""
        group = self.api_version.rpartition("/")[0]
        return group, self.kind, self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Context:
    """What a template may ask for."""

    cluster: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])


class _Budget:
    """What one render may still write; a small template with a large variable must end (D15)."""

    def __init__(self) -> None:
        self._left = MAX_BYTES

    def spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise RenderError(f"the rendered objects are larger than {MAX_BYTES} bytes")


def render(spec: Spec, context: Context) -> list[tuple[str, Object]]:
    """Render every template for one cluster.

    Returns:
        (field of the template, object) in the order of the spec; the objects are new trees.

    Raises:
        RenderError: an expression names nothing, or the result is too large or too deep.
    """
    budget = _Budget()
    return [
        (path, cast("Object", _fill(template, context, budget, path, 0)))
        for path, template in spec.template_fields
    ]


def substitute(value: Any, context: Context, path: str) -> Any:
    """Fill the expressions of any JSON value; `path` names it in messages."""
    return _fill(value, context, _Budget(), path, 0)


def _fill(value: Any, context: Context, budget: _Budget, path: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise RenderError(f"{path}: nested deeper than {_MAX_DEPTH}")
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {
            _fill_key(key, context, budget, path): _fill(
                member, context, budget, f"{path}.{key}", depth + 1
            )
            for key, member in members.items()
        }
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            _fill(item, context, budget, f"{path}[{n}]", depth + 1) for n, item in enumerate(items)
        ]
    if isinstance(value, str):
        return _fill_text(value, context, budget, path)
    budget.spend(8)
    return value


def _fill_key(key: str, context: Context, budget: _Budget, path: str) -> str:
    filled = _fill_text(key, context, budget, path)
    if not isinstance(filled, str):
        raise RenderError(f"{path}: the key {key!r} must become a string")
    return filled


def _fill_text(text: str, context: Context, budget: _Budget, path: str) -> Any:
    if "${" not in text:
        budget.spend(len(text) + 2)
        return text
    whole = _EXPRESSION.fullmatch(text)
    if whole and not whole[1]:
        value = _look_up(whole[2], context, path)
        budget.spend(len(json.dumps(value)))
        # A copy: two places must not share one tree that a patch changes later.
        return json.loads(json.dumps(value))

    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        part = _scalar(_look_up(match[2], context, path), match[2], path)
        budget.spend(len(part))
        return part

    budget.spend(len(text) + 2)
    return _EXPRESSION.sub(replace, text)


def _look_up(expression: str, context: Context, path: str) -> Any:
    if expression == "cluster.name":
        return context.cluster
    if expression.startswith(_LABELS):
        key = expression.removeprefix(_LABELS)
        if key in context.labels:
            return context.labels[key]
        raise RenderError(f"{path}: cluster {context.cluster} has no label {key!r}")
    if expression.startswith(_VARS):
        name = expression.removeprefix(_VARS)
        if name in context.variables:
            return context.variables[name]
        raise RenderError(f"{path}: spec.vars has no {name!r}")
    raise RenderError(
        f"{path}: ${{{expression}}} is not known; there are cluster.name, …labels, vars"
    )


def _scalar(value: Any, expression: str, path: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise RenderError(f"{path}: ${{{expression}}} is no scalar and stands inside a longer string")


def finish(obj: Object, path: str) -> Object:
    """Bring a rendered and customized object into the form that is applied (rule D3).

    What only a server may set is dropped, a missing namespace becomes `default`, and a Secret's
    write-only `stringData` becomes `data`, so that what was applied can be compared with what is.

    Raises:
        RenderError: kind, apiVersion or name are missing.
    """
    metadata: Any = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise RenderError(f"{path}.metadata: an object is required")
    kept = cast("dict[str, Any]", metadata)
    _require_text(obj, "apiVersion", path)
    _require_text(obj, "kind", path)
    _require_text(kept, "name", f"{path}.metadata")
    cleaned: Object = {key: value for key, value in kept.items() if key not in _SERVER_FIELDS}
    cleaned["namespace"] = cleaned.get("namespace") or DEFAULT_NAMESPACE
    annotations = cast("dict[str, Any]", cleaned.get("annotations") or {})
    if _LAST_APPLIED in annotations:
        cleaned["annotations"] = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
    result = {**obj, "metadata": cleaned}
    result.pop("status", None)
    if result["apiVersion"] == "v1" and result["kind"] == "Secret":
        return _without_string_data(result, path)
    return result


def _require_text(part: dict[str, Any], key: str, path: str) -> None:
    if not isinstance(part.get(key), str) or not part[key]:
        raise RenderError(f"{path}.{key}: required")


def _without_string_data(secret: Object, path: str) -> Object:
    plain: Any = secret.get("stringData")
    if plain is None:
        return secret
    if not isinstance(plain, dict):
        raise RenderError(f"{path}.stringData: an object is required")
    texts = cast("dict[str, Any]", plain)
    encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
    rest = {key: value for key, value in secret.items() if key != "stringData"}
    return {**rest, "data": {**cast("dict[str, Any]", secret.get("data") or {}), **encoded}}


def reference(obj: Object) -> ObjectRef:
    """Name a finished object."""
    metadata = obj["metadata"]
    return ObjectRef(obj["apiVersion"], obj["kind"], metadata["namespace"], metadata["name"])
