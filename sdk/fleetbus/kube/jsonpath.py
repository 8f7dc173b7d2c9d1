"""JSONPath as Kubernetes has it: `kubectl get -o jsonpath=…` and the columns of CRDs.

The language is that of k8s.io/client-go/util/jsonpath: fields, `[n]`, `[a:b:c]`, `[*]`,
`['x','y']`, `..` (once), filters such as `[?(@.type=="Ready")]`, `{range …}…{end}`, and text
between braces. A field that an object lacks has no values; that is no error. As there, a name in
brackets is a path (`['a.b']` is `.a.b`), and values of different types cannot be compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleetbus.kube.json_values import render_value
from fleetbus.kube.path_budget import InvalidJsonPath, PathBudget, PathTooCostly
from fleetbus.kube.path_steps import (
    MAX_DEPTH,
    OPERATORS,
    Operand,
    Step,
    Values,
    chain,
    constant_step,
    descend,
    field_step,
    filter_step,
    run_steps,
    slice_step,
    text_step,
    union,
    wildcard,
)

__all__ = ["InvalidJsonPath", "JsonPath", "JsonPathTemplate", "PathTooCostly", "render_value"]

MAX_LENGTH: Final = 4096
"""Characters of an expression."""
_EXPONENT: Final = 1e21
"""From here on Go prints numbers with an exponent."""

_FIELD: Final = re.compile(r"(?:[^\s.\[\]{}()'\"|,=!<>\\]|\\.)+")
_SUBSCRIPT: Final = re.compile(r"-?\d*(?::-?\d*){0,2}")
_KEY: Final = re.compile(r"'[^']*'")
_LONE_MINUS: Final = re.compile(r"-(?!\d)")
_QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_LITERAL: Final = re.compile(r"(?:true|false|[-+]?\d+(?:\.\d+)?)(?=[\s}])")
_RANGE: Final = re.compile(r"range(?=[\s}])")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class JsonPath:
    """One parsed path without braces: `.status.conditions[?(@.type=="Ready")].status`."""

    text: str
    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Parse a path.

        Raises:
            InvalidJsonPath: it is malformed.
        """
        reader = _Reader(text)
        steps = reader.path(is_bare=True)
        reader.expect_end()
        return cls(text, steps)

    def find(self, tree: object, budget: PathBudget | None = None) -> Values:
        """Find the values at the path.

        Args:
            tree: the object.
            budget: of the evaluation.

        Raises:
            InvalidJsonPath: an index is out of range, or a part is not a list.
            PathTooCostly: the budget is used up.
        """
        return run_steps(self.steps, [tree], budget or PathBudget())


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
        skipped = next((token for token in tokens if self._text.startswith(token, self.at)), "")
        self.at += len(skipped)
        return skipped

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
        following = self._text[self.at : self.at + 20]
        return InvalidJsonPath(f"invalid JSONPath {self._text!r:.80}: {why} at {following!r}")

    def path(self, *, is_bare: bool = False) -> tuple[Step, ...]:
        """Read the steps of a path.

        Args:
            is_bare: the first name may lack its dot, and a dot alone is the object itself.
        """
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error("nested too deeply")
        self.spaces()
        self.skip("$", "@")
        steps: list[Step] = []
        while step := self._step(is_first=not steps, is_bare=is_bare):
            steps += step
        self._depth -= 1
        return tuple(steps)

    def _step(self, *, is_first: bool, is_bare: bool) -> Sequence[Step]:
        """Read one step, or after `..` all that follow; none at the end of the path."""
        if self.skip(".."):
            return [descend(self._descendants())]
        has_dot = bool(self.skip("."))
        if self.skip("["):
            return [self._subscript()]
        if has_dot and self.skip("*"):
            return [wildcard]
        if name := self.take(_FIELD) if has_dot or (is_first and is_bare) else "":
            return [field_step(_unescape(name))]
        if has_dot and not (is_first and self._is_over()):
            raise self.error("expected a field")
        return [] if is_bare or not has_dot else [field_step("")]

    def _is_over(self) -> bool:
        return self.at >= len(self._text) or self._text[self.at] in "}) "

    def _descendants(self) -> tuple[Step, ...]:
        """The steps after `..`, the first without a dot."""
        self._descents += 1
        if self._descents > 1:  # each would multiply the cost of the others
            raise self.error("`..` may be used once")
        if self.skip("*"):
            return (wildcard, *self.path())
        if name := self.take(_FIELD):
            return (field_step(_unescape(name)), *self.path())
        return self.path()

    def _subscript(self) -> Step:
        if self.skip("?("):
            step = self._condition()
            self.expect(")")
            self.expect("]")
            return step
        end = self._text.find("]", self.at)
        if end < 0:
            raise self.error("expected ']'")
        parts = self._text[self.at : end].split(",")
        branches = [self._element(item.strip(" ") if len(parts) > 1 else item) for item in parts]
        self.at = end + 1
        return branches[0] if len(branches) == 1 else union(branches)

    def _element(self, text: str) -> Step:
        """One part between brackets: a name in single quotes, an index or a slice."""
        if _KEY.fullmatch(text):
            reader = _Reader(f".{text[1:-1]}")
            steps = reader.path()
            reader.expect_end()
            return chain(steps)
        text = ":" if text == "*" else text
        if not _SUBSCRIPT.fullmatch(text) or _LONE_MINUS.search(text):
            raise self.error("expected an index, a name in single quotes, `*` or a filter")
        return slice_step(text)

    def _condition(self) -> Step:
        left = self._operand()
        self.spaces()
        operator = self.skip(*OPERATORS)
        right = self._operand() if operator else None
        self.spaces()
        return filter_step(left, operator, right)

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
            if not steps and self._text[self.at - 1] not in "@.$(":
                raise self.error("expected a path or a value")
            return lambda element, budget: run_steps(steps, [element], budget)
        return lambda _, __: [constant]


def _unescape(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


def _unquote(quoted: str) -> str:
    def letter(match: re.Match[str]) -> str:
        code = match["code"]
        return chr(int(code, 16)) if code else _ESCAPES.get(match[1], match[1])

    return re.sub(r"\\(u(?P<code>[0-9a-fA-F]{4})|.)", letter, quoted[1:-1])


# --- templates of kubectl -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Range:
    steps: tuple[Step, ...]
    body: Sequence[_Part]


_Part = str | tuple[Step, ...] | _Range


@dataclass(frozen=True, slots=True)
class JsonPathTemplate:
    """The argument of `kubectl get -o jsonpath=…`: text, and paths in braces."""

    _parts: Sequence[_Part]

    @classmethod
    def parse(cls, text: str) -> JsonPathTemplate:
        """Parse a template; a path alone, without any braces, is one too.

        Raises:
            InvalidJsonPath: it is malformed.
        """
        if "{" not in text and text.startswith((".", "$", "@", "[")):
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
    rendered: list[str] = []
    for part in parts:
        budget.spend(1)
        if isinstance(part, str):
            rendered.append(part)
        elif isinstance(part, _Range):
            elements = run_steps(part.steps, [tree], budget)
            rendered += [_render(part.body, each, budget) for each in elements]
        else:
            texts = [_render_result(value) for value in run_steps(part, [tree], budget)]
            for text in texts:
                budget.spend_text(text)
            rendered.append(" ".join(texts))
    return "".join(rendered)


def _render_result(value: object) -> str:
    """Render a value as kubectl prints it."""
    if value is None:
        return "null"
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXPONENT:
        return str(int(value))
    text = render_value(value)
    if isinstance(value, dict | list):
        # As Go's JSON, which may be put into HTML.
        for letter in "<>&":
            text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


class _TemplateReader(_Reader):
    """Reads text and paths in braces."""

    def parts(self, *, is_nested: bool) -> Sequence[_Part]:
        """Read up to `{end}`, or to the end of the template."""
        template_parts: list[_Part] = []
        while True:
            if text := self.take(re.compile(r"[^{]+")):
                template_parts.append(text)
            if self.at >= len(self._text):
                if is_nested:
                    raise self.error("{range} without {end}")
                return template_parts
            self.expect("{")
            self.spaces()
            if self.take(re.compile(r"end\s*(?=})")):
                self.expect("}")
                if not is_nested:
                    raise self.error("{end} without {range}")
                return template_parts
            template_parts += self._action()

    def _action(self) -> Sequence[_Part]:
        if self.take(_RANGE):
            return [_Range(self._chain(), self.parts(is_nested=True))]
        return [self._chain()]

    def _chain(self) -> tuple[Step, ...]:
        """Read up to the closing brace; each part is applied to the values of the one before."""
        steps: list[Step] = []
        while True:
            self.spaces()
            if self.skip("}"):
                return tuple(steps)
            before = self.at
            if quoted := self.take(_QUOTED):
                steps.append(text_step(_unquote(quoted)))
            elif literal := self.take(_LITERAL):
                steps.append(constant_step(json.loads(literal.removeprefix("+"))))
            else:
                steps += self.path()
            if self.at == before:
                raise self.error("expected a path, a string or '}'")
