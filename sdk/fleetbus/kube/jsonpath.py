"""JSONPath as Kubernetes has it: `kubectl get -o jsonpath=…` and the columns of CRDs.

The language is that of k8s.io/client-go/util/jsonpath: fields, `[n]`, `[a:b:c]`, `[*]`,
`['x','y']`, `..` (once), filters such as `[?(@.type=="Ready")]`, `{range …}…{end}`, and text
between braces. A field that an object lacks has no values; that is no error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, cast

from fleetbus.kube.json_values import render_value
from fleetbus.kube.path_budget import InvalidJsonPath, PathBudget, PathTooCostly

__all__ = ["InvalidJsonPath", "JsonPath", "JsonPathTemplate", "PathTooCostly", "render_value"]

MAX_LENGTH: Final = 4096
"""Characters of an expression."""
_MAX_VALUES: Final = 100_000
"""That one step may find: `..` of a hostile object must not fill the memory."""
_MAX_DEPTH: Final = 100

_FIELD: Final = re.compile(r"(?:[^\s.\[\]{}()'\"|,=!<>\\]|\\.)+")
_SUBSCRIPT: Final = re.compile(r"-?\d*(?::-?\d*){0,2}")
_QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": eq, "!=": ne, "<=": le, ">=": ge, "<": lt, ">": gt,
}  # fmt: skip
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}

_Values = list[Any]
_Step = Callable[[_Values, PathBudget], _Values]


@dataclass(frozen=True, slots=True)
class JsonPath:
    """One parsed path without braces: `.status.conditions[?(@.type=="Ready")].status`."""

    text: str
    steps: tuple[_Step, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Parse a path.

        Raises:
            InvalidJsonPath: it is malformed.
        """
        reader = _Reader(text)
        steps = reader.path()
        reader.expect_end()
        return cls(text, steps)

    def find(self, tree: object, budget: PathBudget | None = None) -> _Values:
        """Find the values at the path.

        Args:
            tree: the object.
            budget: of the evaluation.

        Raises:
            InvalidJsonPath: an index is out of range, or a part is not a list.
            PathTooCostly: the budget is used up.
        """
        return _run(self.steps, [tree], budget or PathBudget())


def _run(steps: Sequence[_Step], values: _Values, budget: PathBudget) -> _Values:
    for step in steps:
        budget.spend(1 + len(values))
        values = step(values, budget)
        if len(values) > _MAX_VALUES:
            raise InvalidJsonPath(f"the path has more than {_MAX_VALUES} values")
    return values


# --- the steps of a path ------------------------------------------------------------------------


def _field(name: str) -> _Step:
    def step(values: _Values, _: PathBudget) -> _Values:
        return [v[name] for v in values if isinstance(v, dict) and name in v]

    return step


def _wildcard(values: _Values, budget: PathBudget) -> _Values:
    found: _Values = []
    for value in values:
        found += _children(value, budget)
    return found


def _children(value: object, budget: PathBudget) -> _Values:
    if isinstance(value, list):
        budget.spend(len(cast("_Values", value)))
        return cast("_Values", value)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        budget.spend(len(members))
        return [members[name] for name in sorted(members)]
    return []


def _descend(steps: Sequence[_Step]) -> _Step:
    """The rest of a path, applied to each value and to all that is below it."""

    def every(value: object, depth: int, budget: PathBudget) -> Iterator[Any]:
        yield value
        if depth < _MAX_DEPTH:
            for child in _children(value, budget):
                yield from every(child, depth + 1, budget)

    def step(values: _Values, budget: PathBudget) -> _Values:
        found: _Values = []
        for value in values:
            for each in every(value, 0, budget):
                try:
                    found += _run(steps, [each], budget)
                except PathTooCostly:
                    raise
                except InvalidJsonPath:  # a list is meant, and this is none
                    continue
                if len(found) > _MAX_VALUES:
                    raise InvalidJsonPath(f"the path has more than {_MAX_VALUES} values")
        return found

    return step


def _union(branches: Sequence[_Step]) -> _Step:
    def step(values: _Values, budget: PathBudget) -> _Values:
        return [found for branch in branches for found in _run((branch,), values, budget)]

    return step


def _slice(text: str) -> _Step:
    """`[n]`, `[a:b]` or `[a:b:c]`; as in Go, an index out of range is an error."""
    parts = [int(part) if part not in {"", "-"} else None for part in text.split(":")]
    start, is_one = parts[0] or 0, len(parts) == 1
    end = parts[1] if len(parts) > 1 else None
    stride = 1 if len(parts) < 3 or parts[2] is None else parts[2]  # noqa: PLR2004 -- start:end:step
    if stride < 1:
        raise InvalidJsonPath(f"the step of [{text}] must be positive")

    def cut(value: list[Any]) -> _Values:
        size = len(value)
        first = start + size if start < 0 else start
        last = first + 1 if is_one else size if end is None else end + size if end < 0 else end
        if first == last:
            return []
        if not (0 <= first < size and first < last <= size):
            raise InvalidJsonPath(f"index [{text}] is out of range: the list has {size} elements")
        return value[first:last:stride]

    def step(values: _Values, budget: PathBudget) -> _Values:
        found: _Values = []
        for value in values:
            if value is None:
                continue
            if not isinstance(value, list):
                raise InvalidJsonPath(f"[{text}] needs a list, not {_kind(value)}")
            elements = cut(cast("_Values", value))
            budget.spend(len(elements))
            found += elements
        return found

    return step


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, dict) else "a number"


Operand = Callable[[Any, PathBudget], _Values]


def _filter(left: Operand, operator: str, right: Operand | None) -> _Step:
    def keeps(element: object, budget: PathBudget) -> bool:
        budget.spend(1)
        lefts = left(element, budget)
        if right is None:
            return bool(lefts)
        rights = right(element, budget)
        if not lefts or not rights:
            return False
        if len(lefts) > 1 or len(rights) > 1:
            raise InvalidJsonPath("a filter can only compare one value at a time")
        if isinstance(lefts[0], str):
            budget.spend_text(lefts[0])
        return _compare(lefts[0], operator, rights[0])

    def step(values: _Values, budget: PathBudget) -> _Values:
        found: _Values = []
        for value in values:
            if value is None:
                continue
            if not isinstance(value, list):
                raise InvalidJsonPath(f"a filter needs a list, not {_kind(value)}")
            found += [each for each in cast("_Values", value) if keeps(each, budget)]
        return found

    return step


def _compare(left: object, operator: str, right: object) -> bool:
    """Compare two values; those of different types are never equal, and have no order."""
    comparable = (
        all(isinstance(v, int | float) and not isinstance(v, bool) for v in (left, right))
        or type(left) is type(right)
    ) and not isinstance(left, list | dict)
    if not comparable:
        return operator == "!="
    if isinstance(left, bool) and operator not in {"==", "!="}:
        return False
    return bool(left is None or _OPERATORS[operator](left, right))


# --- reading expressions ------------------------------------------------------------------------


class _Reader:
    """Reads the parts of an expression, from left to right."""

    def __init__(self, text: str, at: int = 0) -> None:
        if len(text) > MAX_LENGTH:
            raise InvalidJsonPath(f"a JSONPath has at most {MAX_LENGTH} characters")
        self._text = text
        self.at = at
        self._depth = 0
        self._descents = 0

    def skip(self, *tokens: str) -> str:
        """Skip one of some tokens, and return it; empty if none is next."""
        found = next((token for token in tokens if self._text.startswith(token, self.at)), "")
        self.at += len(found)
        return found

    def take(self, pattern: re.Pattern[str]) -> str:
        """Read what matches a pattern; empty if nothing does."""
        match = pattern.match(self._text, self.at)
        self.at = match.end() if match else self.at
        return match[0] if match else ""

    def spaces(self) -> None:
        """Skip white space."""
        self.take(re.compile(r"\s*"))

    def expect(self, token: str) -> None:
        """Skip a token that must be next."""
        if not self.skip(token):
            raise self.error(f"expected {token!r}")

    def expect_end(self) -> None:
        """Refuse anything that follows."""
        self.spaces()
        if self.at < len(self._text):
            raise self.error("not understood")

    def error(self, why: str) -> InvalidJsonPath:
        """An error that shows where reading stopped."""
        rest = self._text[self.at : self.at + 20]
        return InvalidJsonPath(f"invalid JSONPath {self._text!r:.80}: {why} at {rest!r}")

    def path(self) -> tuple[_Step, ...]:
        """Read the steps of a path."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error("nested too deeply")
        self.spaces()
        self.skip("$", "@")
        steps: list[_Step] = []
        while step := self._step(is_first=not steps):
            steps += step
        self._depth -= 1
        return tuple(steps)

    def _step(self, *, is_first: bool) -> Sequence[_Step]:
        """Read one step, or after `..` all that follow; none at the end of the path."""
        if self.skip(".."):
            return [_descend(self._descendants())]
        has_dot = bool(self.skip("."))
        if self.skip("["):
            return [self._subscript()]
        if has_dot and self.skip("*"):
            return [_wildcard]
        if name := self.take(_FIELD) if has_dot or is_first else "":
            return [_field(_unescape(name))]
        if has_dot and not (is_first and self._is_over()):  # `.` alone is the object itself
            raise self.error("expected a field")
        return []

    def _is_over(self) -> bool:
        return self.at >= len(self._text) or self._text[self.at] in "}) "

    def _descendants(self) -> tuple[_Step, ...]:
        """The steps after `..`, the first without a dot."""
        self._descents += 1
        if self._descents > 1:  # each would multiply the cost of the others
            raise self.error("`..` may be used once")
        if self.skip("*"):
            return (_wildcard, *self.path())
        if name := self.take(_FIELD):
            return (_field(_unescape(name)), *self.path())
        return self.path()

    def _subscript(self) -> _Step:
        self.spaces()
        if self.skip("*"):
            step: _Step = _wildcard
        elif self.skip("?("):
            step = self._condition()
            self.expect(")")
        else:
            step = self._union()
        self.spaces()
        self.expect("]")
        return step

    def _union(self) -> _Step:
        branches: list[_Step] = []
        while True:
            self.spaces()
            if quoted := self.take(_QUOTED):
                branches.append(_field(_unquote(quoted)))
            elif text := self.take(_SUBSCRIPT):
                if text in {"-", ":"} and text == "-":
                    raise self.error("expected an index")
                branches.append(_slice(text))
            elif name := self.take(_FIELD):
                branches.append(_field(_unescape(name)))
            else:
                raise self.error("expected an index, a name in quotes, `*` or a filter")
            self.spaces()
            if not self.skip(","):
                return branches[0] if len(branches) == 1 else _union(branches)

    def _condition(self) -> _Step:
        left = self._operand()
        self.spaces()
        operator = self.skip(*_OPERATORS)
        right = self._operand() if operator else None
        self.spaces()
        return _filter(left, operator, right)

    def _operand(self) -> Operand:
        self.spaces()
        if quoted := self.take(_QUOTED):
            constant: Any = _unquote(quoted)
        elif word := self.skip("true", "false"):
            constant = word == "true"
        elif number := self.take(_NUMBER):
            constant = json.loads(number.removeprefix("+"))
        else:
            steps = self.path()
            if not steps and self._text[self.at - 1] not in "@.$":
                raise self.error("expected a path or a value")
            return lambda element, budget: _run(steps, [element], budget)
        return lambda _, __: [constant]


def _unescape(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


def _unquote(quoted: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), quoted[1:-1])


# --- templates of kubectl -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Range:
    steps: tuple[_Step, ...]
    body: Sequence[_Part]


_Part = str | tuple[_Step, ...] | _Range


@dataclass(frozen=True, slots=True)
class JsonPathTemplate:
    """The argument of `kubectl get -o jsonpath=…`: text, and paths in braces."""

    _parts: Sequence[_Part]

    @classmethod
    def parse(cls, text: str) -> JsonPathTemplate:
        """Parse a template; an expression without any braces is one path.

        Raises:
            InvalidJsonPath: it is malformed.
        """
        if "{" not in text:
            text = f"{{{text}}}"
        reader = _TemplateReader(text)
        return cls(reader.parts(is_nested=False))

    def render(self, tree: object, budget: PathBudget | None = None) -> str:
        """Render an object.

        Args:
            tree: the object.
            budget: of the evaluation of all its paths together.

        Raises:
            InvalidJsonPath: a path cannot be applied to it.
            PathTooCostly: the budget is used up.
        """
        return _render(self._parts, tree, budget or PathBudget())


def _render(parts: Sequence[_Part], tree: object, budget: PathBudget) -> str:
    found: list[str] = []
    for part in parts:
        budget.spend(1)
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, _Range):
            elements = _run(part.steps, [tree], budget)
            found += [_render(part.body, each, budget) for each in elements]
        else:
            texts = [render_value(value) for value in _run(part, [tree], budget)]
            for text in texts:
                budget.spend_text(text)
            found.append(" ".join(texts))
    return "".join(found)


class _TemplateReader(_Reader):
    """Reads text and paths in braces."""

    def parts(self, *, is_nested: bool) -> Sequence[_Part]:
        """Read up to `{end}`, or to the end of the template."""
        found: list[_Part] = []
        while True:
            if text := self.take(re.compile(r"[^{]+")):
                found.append(text)
            if self.at >= len(self._text):
                if is_nested:
                    raise self.error("{range} without {end}")
                return found
            self.expect("{")
            self.spaces()
            if self.take(re.compile(r"end\s*(?=})")):
                self.expect("}")
                if not is_nested:
                    raise self.error("{end} without {range}")
                return found
            found += self._action()

    def _action(self) -> Sequence[_Part]:
        if self.take(re.compile(r"range\s+")):
            steps = self.path()
            self.spaces()
            self.expect("}")
            return [_Range(steps, self.parts(is_nested=True))]
        found: list[_Part] = []
        while not self.skip("}"):
            before = self.at
            quoted = self.take(_QUOTED)
            found.append(_unquote(quoted) if quoted else self.path())
            self.spaces()
            if self.at == before:
                raise self.error("expected a path, a string or '}'")
        return found
