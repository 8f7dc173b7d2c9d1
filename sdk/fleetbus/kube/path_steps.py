"""The steps of a JSONPath: each finds values in those of the step before.

Their meaning is that of k8s.io/client-go/util/jsonpath; each spends from a budget (rule A8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, cast

from fleetbus.kube.path_budget import InvalidJsonPath, PathBudget

_MAX_VALUES: Final = 100_000
"""That one step may find: `..` of a hostile object must not fill the memory."""
MAX_DEPTH: Final = 100
OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": eq, "!=": ne, "<=": le, ">=": ge, "<": lt, ">": gt,
}  # fmt: skip
_ORDERED: Final = (bool, int, float, str)

Values = list[Any]
Step = Callable[[Values, PathBudget], Values]


def run_steps(steps: Sequence[Step], values: Values, budget: PathBudget) -> Values:
    """Apply steps one after the other.

    Raises:
        InvalidJsonPath: a step cannot be applied, or finds too many values.
        PathTooCostly: the budget is used up.
    """
    for step in steps:
        budget.spend(1 + len(values))
        values = step(values, budget)
        if len(values) > _MAX_VALUES:
            raise InvalidJsonPath(f"the path has more than {_MAX_VALUES} values")
    return values


def field_step(name: str) -> Step:
    """`.name`: the field of each object that has it."""

    def step(values: Values, _: PathBudget) -> Values:
        return [v[name] for v in values if isinstance(v, dict) and name in v]

    return step


def wildcard(values: Values, budget: PathBudget) -> Values:
    """`.*`: the members of objects and the elements of lists."""
    children: Values = []
    for value in values:
        children += _children(value, budget)
    return children


def _children(value: object, budget: PathBudget) -> Values:
    if isinstance(value, list):
        budget.spend(len(cast("Values", value)))
        return cast("Values", value)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        budget.spend(len(members))
        return [members[name] for name in sorted(members)]
    return []


def descend(steps: Sequence[Step]) -> Step:
    """The rest of a path, applied to each value and to all that is below it."""

    def every(value: object, depth: int, budget: PathBudget) -> Iterator[Any]:
        yield value
        if depth < MAX_DEPTH:
            for child in _children(value, budget):
                yield from every(child, depth + 1, budget)

    def step(values: Values, budget: PathBudget) -> Values:
        results: Values = []
        for value in values:
            for each in every(value, 0, budget):
                results += run_steps(steps, [each], budget)
                if len(results) > _MAX_VALUES:
                    raise InvalidJsonPath(f"the path has more than {_MAX_VALUES} values")
        return results

    return step


def union(branches: Sequence[Step]) -> Step:
    """`[a,b]`: the values of one branch after the other."""

    def step(values: Values, budget: PathBudget) -> Values:
        return [value for branch in branches for value in run_steps((branch,), values, budget)]

    return step


def chain(steps: Sequence[Step]) -> Step:
    """Several steps as one."""

    def step(values: Values, budget: PathBudget) -> Values:
        return run_steps(steps, values, budget)

    return step


def slice_step(text: str) -> Step:
    """`[n]`, `[a:b]` or `[a:b:c]`; as in Go, an index out of range is an error."""
    parts = [int(number) if number not in {"", "-"} else None for number in text.split(":")]
    start, is_one = parts[0] or 0, len(parts) == 1
    end = parts[1] if len(parts) > 1 else None
    stride = 1 if len(parts) < 3 or parts[2] is None else parts[2]  # noqa: PLR2004 -- start:end:step
    if stride < 1:
        raise InvalidJsonPath(f"the step of [{text}] must be positive")

    def cut(value: list[Any]) -> Values:
        size = len(value)
        first = start + size if start < 0 else start
        last = first + 1 if is_one else size if end is None else end + size if end < 0 else end
        if first == last:
            return []
        if not (0 <= first < size and first < last <= size):
            raise InvalidJsonPath(f"index [{text}] is out of range: the list has {size} elements")
        return value[first:last:stride]

    def step(values: Values, budget: PathBudget) -> Values:
        results: Values = []
        for elements in map(cut, _lists(values, f"[{text}]")):
            budget.spend(len(elements))
            results += elements
        return results

    return step


def _lists(values: Values, place: str) -> Iterator[Values]:
    """Yield the lists among values, without nulls.

    Raises:
        InvalidJsonPath: this part of the path needs a list, and a value is none.
    """
    for value in values:
        if value is None:
            continue
        if not isinstance(value, list):
            raise InvalidJsonPath(f"{place} needs a list, not {_kind(value)}")
        yield cast("Values", value)


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None:
        return "null"
    return "a number" if isinstance(value, int) else "a number with a fraction"


Operand = Callable[[Any, PathBudget], Values]


def filter_step(left: Operand, operator: str, right: Operand | None) -> Step:
    """`[?(…)]`: the elements of lists that have a value, or compare so with another."""

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

    def step(values: Values, budget: PathBudget) -> Values:
        results: Values = []
        for elements in _lists(values, "a filter"):
            results += [each for each in elements if keeps(each, budget)]
        return results

    return step


def _compare(left: object, operator: str, right: object) -> bool:
    """Compare two values of one type, as templates of Go do.

    Raises:
        InvalidJsonPath: they have no order, or different types; 1 and 1.5 have.
    """
    kind = type(left)
    if kind is not type(right) or kind not in _ORDERED:
        raise InvalidJsonPath(f"a filter cannot compare {_kind(left)} with {_kind(right)}")
    if kind is bool and operator not in {"==", "!="}:
        raise InvalidJsonPath("booleans have no order")
    return bool(OPERATORS[operator](left, right))


def text_step(text: str) -> Step:
    """A string, whatever the values are."""

    def step(_: Values, __: PathBudget) -> Values:
        return [text]

    return step


def constant_step(value: object) -> Step:
    """A number or a boolean, once per value."""

    def step(values: Values, _: PathBudget) -> Values:
        return [value] * len(values)

    return step
