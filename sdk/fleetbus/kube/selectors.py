"""Label selectors and field selectors, in the syntax of kubectl.

Labels: `app=web,tier!=db,env in (prod, test),!legacy,team`; fields: `status.phase=Running,a.b!=c`,
and beyond kubectl `a[*].b in (c, d)`.
Absent labels satisfy `!=`, `notin` and `!name`, as in Kubernetes; `cores>4` compares integers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self, cast

from fleetbus.errors import FleetbusError
from fleetbus.kube.field_paths import FieldPath, InvalidPath, Value, texts_of

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_TOKEN = re.compile(r"\s*(?:(?P<sign>==|!=|=|!|\(|\)|,|>|<)|(?P<word>[^\s=!(),<>]+))")
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_INT64: Final = range(-(2**63), 2**63)
_MAX_PREFIX: Final = 253
_MAX_DIGITS: Final = 63


class InvalidSelector(FleetbusError, ValueError):
    """A malformed selector; the message says where and why."""


class Operator(StrEnum):
    """The operators of matchExpressions, and two that only `-l` knows."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER = "Gt"
    LESS = "Lt"


_COMPARISONS: Final = {">": Operator.GREATER, "<": Operator.LESS}
_SIGNS_OF: Final = {operator: sign for sign, operator in _COMPARISONS.items()}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label; `values` is empty for the two existence operators."""

    name: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy it."""
        value = labels.get(self.name)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GREATER | Operator.LESS:
                return self._compares(_integer(value or ""), _integer(self.values[0]))

    def _compares(self, value: int | None, bound: int | None) -> bool:
        if value is None or bound is None:
            return False
        return value > bound if self.operator is Operator.GREATER else value < bound

    @property
    def term(self) -> str | None:
        """`<name>=<value>` if the requirement is exactly this pair, which an index can answer."""
        if self.operator is Operator.IN and len(self.values) == 1:
            return f"{self.name}={self.values[0]}"
        return None

    def __str__(self) -> str:
        values = ",".join(self.values)
        if sign := _SIGNS_OF.get(self.operator):
            return f"{self.name}{sign}{values}"
        match self.operator:
            case Operator.IN:
                return self.term or f"{self.name} in ({values})"
            case Operator.NOT_IN if len(self.values) == 1:
                return f"{self.name}!={values}"
            case Operator.NOT_IN:
                return f"{self.name} notin ({values})"
            case Operator.EXISTS:
                return self.name
            case _:
                return f"!{self.name}"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that must all hold; without any, everything matches."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read kubectl's `-l` syntax.

        Raises:
            InvalidSelector: it is not well formed, or a name or value is not a legal label.
        """
        return cls(tuple(_LabelParser(text).parse()))

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Read the object form: matchLabels and matchExpressions.

        Raises:
            InvalidSelector: an unknown field or operator, or an illegal label.
        """
        unknown = set(spec) - {"matchLabels", "matchExpressions"}
        if unknown:
            raise InvalidSelector(f"selector has an unknown field {min(unknown)!r}")
        requirements = [
            _checked(Requirement(str(name), Operator.IN, (str(value),)), str(spec))
            for name, value in cast("Mapping[str, Any]", spec.get("matchLabels") or {}).items()
        ]
        expressions = cast("Sequence[Any]", spec.get("matchExpressions") or ())
        return cls(
            tuple(requirements + [_from_expression(expression) for expression in expressions])
        )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels satisfy every requirement."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    @property
    def terms(self) -> tuple[str, ...]:
        """The `<name>=<value>` pairs that every match has."""
        terms = (requirement.term for requirement in self.requirements)
        return tuple(term for term in terms if term is not None)

    @property
    def rest(self) -> Self:
        """The requirements that `terms` does not cover."""
        return type(self)(tuple(r for r in self.requirements if r.term is None))

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """The field at `path` has one of the values, or none of them.

    An absent field equals the empty string; a map or a list equals nothing. A path with `[*]` has
    many values: one of them is enough, and `!=` means that none is equal.
    """

    path: FieldPath
    values: tuple[str, ...]
    is_equal: bool

    @property
    def only_value(self) -> str:
        """The value, if it must be exactly this one; else empty."""
        return self.values[0] if self.is_equal and len(self.values) == 1 else ""

    def matches(self, tree: Mapping[str, Any]) -> bool:
        """Whether the object satisfies it."""
        return self.matches_value(self.path.read(tree))

    def matches_value(self, value: Value) -> bool:
        """Whether an object with this value satisfies it."""
        return any(text in self.values for text in texts_of(value)) is self.is_equal


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Conditions on the fields of an object that must all hold."""

    requirements: tuple[FieldRequirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        r"""Read `a.b=c,d!=e`; `\,`, `\=` and `\\` stand for themselves inside a value.

        Beyond kubectl's syntax there are `a in (b, c)` and `a notin (b, c)`, and paths as
        `FieldPath` reads them.

        Raises:
            InvalidSelector: a part has no path or no operator, or ends in a lone backslash.
        """
        return cls(tuple(_field_requirement(part) for part in _split_fields(text)))

    def matches(self, tree: Mapping[str, Any]) -> bool:
        """Whether an object, as a tree of maps, satisfies every requirement."""
        return all(requirement.matches(tree) for requirement in self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)


class _LabelParser:
    """A cursor over the tokens of one selector."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._at = 0

    def parse(self) -> list[Requirement]:
        if not self._tokens:
            return []
        requirements = [self._requirement()]
        while self._accept(","):
            requirements.append(self._requirement())
        if self._peek() is not None:
            raise self._error(f"expected ',' before {self._peek()!r}")
        return requirements

    def _requirement(self) -> Requirement:
        if self._accept("!"):
            return self._check(Requirement(self._word("a label name"), Operator.DOES_NOT_EXIST))
        name = self._word("a label name")
        if operator := _COMPARISONS.get(self._peek() or ""):
            self._at += 1
            return self._check(Requirement(name, operator, (self._bound(),)))
        return self._check(self._of_strings(name))

    def _of_strings(self, name: str) -> Requirement:
        if self._accept("=") or self._accept("=="):
            return Requirement(name, Operator.IN, (self._value(),))
        if self._accept("!="):
            return Requirement(name, Operator.NOT_IN, (self._value(),))
        if self._accept("in"):
            return Requirement(name, Operator.IN, self._set())
        if self._accept("notin"):
            return Requirement(name, Operator.NOT_IN, self._set())
        return Requirement(name, Operator.EXISTS)

    def _set(self) -> tuple[str, ...]:
        if not self._accept("("):
            raise self._error("expected '(' after in or notin")
        values = {self._value()}
        while self._accept(","):
            values.add(self._value())
        if not self._accept(")"):
            raise self._error("expected ')' or ','")
        return tuple(sorted(values))

    def _value(self) -> str:
        """A value may be omitted: `a=` selects the empty one."""
        return "" if self._peek() in {None, ",", ")"} else self._word("a value")

    def _bound(self) -> str:
        bound = self._word("an integer")
        if _integer(bound) is None:
            raise self._error(f"{bound!r} is not an integer")
        return bound

    def _word(self, expected: str) -> str:
        token = self._peek()
        if token is None or token in _SIGNS:
            raise self._error(f"expected {expected}, found {token or 'the end'!r}")
        self._at += 1
        return token

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _accept(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._at += 1
        return True

    def _check(self, requirement: Requirement) -> Requirement:
        return _checked(requirement, self._text)

    def _error(self, reason: str) -> InvalidSelector:
        return InvalidSelector(f"label selector {self._text!r}: {reason}")

    @staticmethod
    def _split(text: str) -> list[str]:
        tokens: list[str] = []
        stripped = text.rstrip()
        at = 0
        while at < len(stripped):
            match = _LABEL_TOKEN.match(stripped, at)
            if match is None:
                raise InvalidSelector(f"label selector {text!r}: cannot read {stripped[at:]!r}")
            tokens.append(match.group().strip())
            at = match.end()
        return tokens


_SIGNS: Final = frozenset({"==", "!=", "=", "!", "(", ")", ",", ">", "<"})
_OF_SPECS: Final = (Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.DOES_NOT_EXIST)


def _integer(text: str) -> int | None:
    """An integer as Go reads it; None if it is none."""
    if len(text) > _MAX_DIGITS or not _INTEGER.fullmatch(text):
        return None
    return number if (number := int(text)) in _INT64 else None


def _checked(requirement: Requirement, text: str) -> Requirement:
    prefix, slash, name = requirement.name.rpartition("/")
    has_prefix = bool(_PREFIX.fullmatch(prefix)) and len(prefix) <= _MAX_PREFIX
    if not _NAME.fullmatch(name) or (slash and not has_prefix):
        raise InvalidSelector(
            f"label selector {text!r}: {requirement.name!r} is not a valid label name"
        )
    for value in requirement.values:
        if value and not _NAME.fullmatch(value):
            raise InvalidSelector(f"label selector {text!r}: {value!r} is not a valid label value")
    return requirement


def _from_expression(expression: Any) -> Requirement:
    if not isinstance(expression, Mapping):
        raise InvalidSelector(f"matchExpressions has an entry that is not a map: {expression!r}")
    fields = cast("Mapping[str, Any]", expression)
    values = tuple(sorted({str(value) for value in fields.get("values") or ()}))
    try:
        operator = _OF_SPECS[_OF_SPECS.index(Operator(str(fields.get("operator"))))]
    except ValueError as e:
        operators = ", ".join(_OF_SPECS)
        raise InvalidSelector(
            f"matchExpressions has the operator {fields.get('operator')!r}; known: {operators}"
        ) from e
    if bool(values) is not (operator in {Operator.IN, Operator.NOT_IN}):
        raise InvalidSelector(
            f"matchExpressions: {operator} on {fields.get('key')!r} with {len(values)} values"
        )
    return _checked(Requirement(str(fields.get("key", "")), operator, values), str(fields))


_PATH: Final = r"\s*((?:\\.|[^=!\s\\,])+)"
_ONE_OF = re.compile(_PATH + r"\s+(in|notin)\s*\(((?:\\.|[^()\\])*)\)\s*(?=,|$)")
_COMPARED = re.compile(_PATH + r"\s*(==|!=|=)((?:\\.|[^=\\])*)")
_UNTIL_COMMA = re.compile(r"(?:\\.|[^,\\])+|\\$")


def _split_fields(text: str) -> list[str]:
    """Split at unescaped commas outside of sets; empty parts are ignored, as in kubectl."""
    parts: list[str] = []
    stripped, at = text.strip(), 0
    while at < len(stripped):
        match = _ONE_OF.match(stripped, at) or _UNTIL_COMMA.match(stripped, at)
        if match is not None:
            parts.append(match.group())
        at = match.end() if match is not None else at + 1
    return parts


def _field_requirement(term: str) -> FieldRequirement:
    if match := _ONE_OF.fullmatch(term):
        values = [_unescape(value) for value in _UNTIL_COMMA.findall(match[3])]
        return FieldRequirement(_field_path(match[1]), tuple(values), match[2] == "in")
    match = _COMPARED.fullmatch(term)
    if match is None:
        raise InvalidSelector(
            f"field selector: {term[:80]!r} is not like path=value, path!=value, path in (a, b) or"
            " path notin (a, b)"
        )
    return FieldRequirement(_field_path(match[1]), (_unescape(match[3]),), match[2] != "!=")


def _field_path(text: str) -> FieldPath:
    try:
        return FieldPath.parse(text)
    except InvalidPath as e:
        raise InvalidSelector(f"field selector: {e}") from e


def _unescape(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value.strip())
