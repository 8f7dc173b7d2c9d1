"""Renders templates for one cluster: typed `${…}` substitution, nothing else (rule D15).

Three expressions exist: `${cluster.name}`, `${cluster.labels.<key>}` and `${vars.<name>}`. There
is no language behind them: no attribute access, no call, no loop, and substituted values are not
expanded again. A string that is one expression takes the type of the value, so
`replicas: "${vars.n}"` is a number if `vars.n` is one; inside a longer string only scalars fit.
Other `${…}` strings, like `${HOME}` of a shell, are left as they are; `$${cluster.name}` is the
literal `${cluster.name}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
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
_COMPARED = 200
"""So many names are compared with a misspelt one: it is done for each cluster."""


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """Identifies an object on a target.

    The version is not part of its identity (`key`): a template that moves from v1beta1 to v1
    describes the same object.
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
    """The values that a template may use."""

    cluster: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])


class _Budget:
    """Bounds the output: a small template with a large variable must not expand without end."""

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
    """Substitute the expressions in any JSON value; `path` names it in messages."""
    return _fill(value, context, _Budget(), path, 0)


def _fill(value: Any, context: Context, budget: _Budget, path: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise RenderError(f"{path}: nested deeper than {_MAX_DEPTH}")
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        filled = {
            _fill_key(key, context, budget, path): _fill(
                member, context, budget, f"{path}.{key}", depth + 1
            )
            for key, member in members.items()
        }
        if len(filled) < len(members):
            raise RenderError(f"{path}: two keys become the same")
        return filled
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [
            _fill(item, context, budget, f"{path}[{n}]", depth + 1) for n, item in enumerate(items)
        ]
    if isinstance(value, str):
        return _fill_string(value, context, budget, path)
    budget.spend(8)
    return value


def _fill_key(key: str, context: Context, budget: _Budget, path: str) -> str:
    filled = _fill_string(key, context, budget, path)
    if not isinstance(filled, str):
        raise RenderError(f"{path}: the key {key!r} must become a string")
    return filled


def _fill_string(text: str, context: Context, budget: _Budget, path: str) -> Any:
    if "${" not in text:
        budget.spend(len(text) + 2)
        return text
    whole = _EXPRESSION.fullmatch(text)
    if whole and not whole[1]:
        value = _look_up(whole[2], context, path)
        budget.spend(len(json.dumps(value)))
        # A copy: two fields must not share one tree, which a patch may change later.
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
        raise RenderError(
            f"{path}: cluster {context.cluster} has no label {key!r}{_similar(key, context.labels)}"
        )
    if expression.startswith(_VARS):
        name = expression.removeprefix(_VARS)
        if name in context.variables:
            return context.variables[name]
        raise RenderError(f"{path}: spec.vars has no {name!r}{_similar(name, context.variables)}")
    known = ["cluster.name", *(_LABELS + key for key in context.labels)]
    known += [_VARS + name for name in context.variables]
    raise RenderError(
        f"{path}: unknown expression ${{{expression}}}{_similar(expression, known)}; allowed are"
        " cluster.name, cluster.labels.KEY and vars.NAME"
    )


def _similar(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant, for a message; empty if none is alike."""
    near = get_close_matches(name, islice(known, _COMPARED), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _scalar(value: Any, expression: str, path: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise RenderError(f"{path}: ${{{expression}}} is not a scalar, but part of a longer string")


def reference(obj: Object) -> ObjectRef:
    """Build the reference of a finished object."""
    metadata = obj["metadata"]
    return ObjectRef(obj["apiVersion"], obj["kind"], metadata["namespace"], metadata["name"])
