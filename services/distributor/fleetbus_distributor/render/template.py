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
from itertools import islice
from typing import Any, TypeAlias, cast

from fleetbus.process.close_names import close_names
from fleetbus_distributor.errors import RenderError
from fleetbus_distributor.render.spec import Spec
from fleetbus_distributor.render.work import MAX_DEPTH, Work

Object = dict[str, Any]

DEFAULT_NAMESPACE = "default"
_EXPRESSION = re.compile(r"(\$?)\$\{((?:cluster|vars)\.[^{}]*)\}")
_LABELS = "cluster.labels."
_VARS = "vars."
_COMPARED = 100
"""So many names are compared with a misspelt one: it is done for each cluster."""
_MAX_SHOWN = 200
_Path: TypeAlias = "str | tuple[_Path, str]"
"""A field for messages: the path of its parent, and the rest. It is joined only if there is
something to say, because one long key would stand in the path of everything below it."""


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


def render(spec: Spec, context: Context, work: Work | None = None) -> list[tuple[str, Object]]:
    """Render every template for one cluster.

    Args:
        spec: the spec.
        context: the values that a template may use.
        work: counts what is made; absent if that is all that is made.

    Returns:
        (field of the template, object) in the order of the spec; the objects are new trees.

    Raises:
        RenderError: an expression names nothing, or the result is too large or too deep.
    """
    work = work or Work()
    return [
        (path, cast("Object", substitute(template, context, path, work)))
        for path, template in spec.template_fields
    ]


def substitute(value: Any, context: Context, path: str, work: Work | None = None) -> Any:
    """Substitute the expressions in any JSON value; `path` names it in messages."""
    return _fill(value, context, work or Work(), path, 0)


def _joined(path: _Path) -> str:
    steps: list[str] = []
    while isinstance(path, tuple):
        path, step = path
        steps.append(step if step.startswith("[") else f".{step}")
    return _cut(path + "".join(reversed(steps)))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def _fill(value: Any, context: Context, work: Work, path: _Path, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise RenderError(f"{_joined(path)}: nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        return _fill_string(value, context, work, path)
    if isinstance(value, dict):
        work.spend_container()
        members = cast("dict[str, Any]", value)
        filled = {
            _fill_key(key, context, work, path): _fill(
                member, context, work, (path, key), depth + 1
            )
            for key, member in members.items()
        }
        if len(filled) < len(members):
            raise RenderError(f"{_joined(path)}: two keys become the same")
        return filled
    if isinstance(value, list):
        work.spend_container()
        items = cast("list[Any]", value)
        return [
            _fill(item, context, work, (path, f"[{n}]"), depth + 1) for n, item in enumerate(items)
        ]
    work.spend_scalar()
    return value


def _fill_key(key: str, context: Context, work: Work, path: _Path) -> str:
    filled = _fill_string(key, context, work, path)
    if not isinstance(filled, str):
        raise RenderError(f"{_joined(path)}: the key {_cut(key)!r} must become a string")
    return filled


def _fill_string(text: str, context: Context, work: Work, path: _Path) -> Any:
    work.spend_text(text)
    if "${" not in text:
        return text
    match = _EXPRESSION.fullmatch(text)
    if match and not match[1]:
        value = _look_up(match[2], context, path)
        work.spend_value(value, _joined(path))
        # A copy: two fields must not share one tree, which a patch may change later.
        return json.loads(json.dumps(value)) if isinstance(value, dict | list) else value

    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        piece = _scalar(_look_up(match[2], context, path), match[2], path)
        work.spend_text(piece)
        return piece

    return _EXPRESSION.sub(replace, text)


def _look_up(expression: str, context: Context, path: _Path) -> Any:
    if expression == "cluster.name":
        return context.cluster
    if expression.startswith(_LABELS):
        key = expression.removeprefix(_LABELS)
        if key in context.labels:
            return context.labels[key]
        near = similar(key, context.labels)
        raise RenderError(
            f"{_joined(path)}: cluster {context.cluster} has no label {_cut(key)!r}{near}"
        )
    if expression.startswith(_VARS):
        name = expression.removeprefix(_VARS)
        if name in context.variables:
            return context.variables[name]
        near = similar(name, context.variables)
        raise RenderError(f"{_joined(path)}: spec.vars has no {_cut(name)!r}{near}")
    allowed = ["cluster.name", *(_LABELS + key for key in context.labels)]
    allowed += [_VARS + name for name in context.variables]
    raise RenderError(
        f"{_joined(path)}: unknown expression ${{{_cut(expression)}}}"
        f"{similar(expression, allowed)}; allowed are cluster.name, cluster.labels.KEY and"
        " vars.NAME"
    )


def similar(name: str, names: Iterable[str]) -> str:
    """The name that was probably meant, for a message; empty if none is alike."""
    near = close_names(name, islice(names, _COMPARED))
    return f" (did you mean {near[0]!r}?)" if near else ""


def _scalar(value: Any, expression: str, path: _Path) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise RenderError(
        f"{_joined(path)}: ${{{_cut(expression)}}} is not a scalar, but part of a longer string"
    )


def reference(obj: Object) -> ObjectRef:
    """Build the reference of a finished object."""
    metadata = obj["metadata"]
    return ObjectRef(obj["apiVersion"], obj["kind"], metadata["namespace"], metadata["name"])
