"""The work for the cells of an object grows in proportion to its size at most (rule A8)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from fleetbus.kube.json_fields import MOST_READ
from fleetbus.kube.json_values import render_start, render_value
from fleetbus.kube.jsonpath import JsonPath, JsonPathTemplate
from fleetbus.kube.path_budget import InvalidJsonPath, PathBudget
from fleetbus_proto.events import PrinterColumn
from fleetbus_query_api.tables.builtin import BUILTIN
from fleetbus_query_api.tables.column import (
    CELL_STEPS,
    LONGEST_CELL,
    ROW_CHARACTERS,
    ROW_STEPS,
    TOO_COSTLY,
    CellCosts,
)
from fleetbus_query_api.tables.custom import custom_columns
from support.calls import counted_calls
from support.rows import each_row

Tree = dict[str, Any]

_LISTS = (
    *("containers", "initContainers", "containerStatuses", "initContainerStatuses", "volumes"),
    *("ports", "rules", "tls", "hosts", "ingress", "egress", "cidrs", "addresses", "podIPs"),
    *("conditions", "readinessGates", "taints", "accessModes", "metrics", "currentMetrics"),
    *("webhooks", "subjects", "secrets", "drivers", "validations"),
)


def wide_object(size: int, members: int | None = None) -> Tree:
    """An object that has lists and maps of a size wherever a built-in type has some."""
    element = {
        "name": "a", "image": "b", "type": "Ready", "conditionType": "Other", "status": "True",
        "port": 1, "key": "a", "operator": "In", "values": ["x"], "ip": "1", "host": "x",
        "kind": "ServiceAccount", "addresses": ["1"],
    }  # fmt: skip
    many = [element] * size
    lists = dict.fromkeys(_LISTS, many)
    strings = {str(number): "v" for number in range(members or size)}
    selector = {"matchLabels": strings, "matchExpressions": many}
    fields = {
        **lists,
        "selector": selector,
        "podSelector": selector,
        "template": {"spec": lists},
        "loadBalancer": {"ingress": many},
        "externalIPs": ["1"] * size,
    }
    metadata = {"name": "x", "labels": strings, "annotations": strings}
    subsets = [{"addresses": many, "ports": many}]
    return {**lists, "metadata": metadata, "spec": fields, "status": fields, "subsets": subsets,
            "data": strings, "endpoints": many}  # fmt: skip


@each_row("resource", sorted(BUILTIN))
def test_a8_the_cells_of_a_built_in_type_take_work_in_proportion_to_the_object(resource: str):
    def work(size: int) -> int:
        tree = wide_object(size)
        with counted_calls() as calls:
            CellCosts().cells(BUILTIN[resource], tree)
        return calls.count

    assert work(400) < 3 * work(200) + 1_000


@pytest.mark.slow
@each_row("resource", sorted(BUILTIN))
def test_a8_the_cells_of_a_built_in_type_take_bounded_work_of_any_object(resource: str):
    """A Pod with 450,000 statuses of containers stalled the query API for a second."""
    tree = wide_object(5 * MOST_READ, members=10)
    with counted_calls() as calls:
        cells = CellCosts().cells(BUILTIN[resource], tree)
    assert len(cells) == len(BUILTIN[resource])
    assert calls.count < 100 * MOST_READ


def declared(*paths: str, type_: str = "string") -> tuple[PrinterColumn, ...]:
    return tuple(PrinterColumn(name="X", type=type_, json_path=path) for path in paths)


NOTHING: list[Any] = [[]]
HOSTILE_PATHS = (
    "..[" + ",".join(["'a'"] * 126) + "]",
    "..[" + ",".join(["0"] * 200) + "]",
    "..[?(@.a)]",
    "..[0:]",
    "..*",
    "..a",
    ".spec[?(@[?(@[?(@.a)])])]",
    ".spec[*][*][*]",
    ".spec",
    "",
)
WIDE_VALUES: dict[str, Any] = {
    "lists": NOTHING * 30_000,
    "nested lists": [[[{"a": 1}] * 30] * 30] * 30,
    "maps": {str(number): {"a": "x"} for number in range(30_000)},
    "texts": ["x" * 1_000] * 1_000,
}


@pytest.mark.slow
@each_row("path", HOSTILE_PATHS)
@each_row("value", WIDE_VALUES)
@each_row("type_", ["string", "integer", "date"])
def test_a8_the_cells_of_a_custom_type_take_a_bounded_number_of_steps(
    path: str, value: str, type_: str
):
    columns = custom_columns(declared(*[path] * 32, type_=type_))

    with counted_calls() as calls:
        cells = CellCosts().cells(columns, {"metadata": {"name": "w"}, "spec": WIDE_VALUES[value]})

    assert cells[0] == "w"
    assert calls.count < 10 * (ROW_STEPS + 32 * CELL_STEPS)
    assert sum(len(str(cell)) for cell in cells[1:] if cell is not None) < ROW_CHARACTERS


def test_a8_a_cell_that_takes_too_much_work_says_so_and_the_others_of_the_row_are_there():
    columns = custom_columns(declared(HOSTILE_PATHS[0], ".status.phase"))

    cells = CellCosts().cells(columns, {"spec": NOTHING * 30_000, "status": {"phase": "Ready"}})

    assert cells[1:] == [TOO_COSTLY, "Ready"]


def test_a8_the_rows_of_a_table_share_a_budget_and_plain_cells_never_lack_theirs():
    columns = custom_columns(declared("..spec[?(@.a)]", ".status.phase"))
    costs, tree = CellCosts(), {"spec": NOTHING * 9_000, "status": {"phase": "Ready"}}
    with counted_calls() as first:
        costs.cells(columns, tree)
    for _ in range(150):
        costs.cells(columns, tree)
    with counted_calls() as last:
        cells = costs.cells(columns, tree)

    assert cells[1:] == [TOO_COSTLY, "Ready"]
    assert last.count < first.count / 20


def test_a_long_text_is_cut_and_a_wide_row_too():
    tree = {"spec": {"long": "x" * 100_000}}

    cells = CellCosts().cells(custom_columns(declared(*[".spec.long"] * 32)), tree)

    assert len(str(cells[1])) == LONGEST_CELL
    assert sum(len(str(cell)) for cell in cells if cell) == ROW_CHARACTERS


def _random_value(random_: random.Random, depth: int) -> Any:
    kind = random_.randrange(8 if depth else 6)
    if kind >= 6:
        values = [_random_value(random_, depth - 1) for _ in range(random_.randrange(4))]
        return values if kind == 6 else {f'k"{number}': v for number, v in enumerate(values)}
    return (None, True, -3, 1.5, 'a"\n\u00e9', "")[kind]


def test_the_start_of_a_value_is_the_start_of_the_whole():
    random_ = random.Random(26)
    for _ in range(300):
        value, longest = _random_value(random_, 4), random_.randrange(1, 60)
        assert render_start(value, longest, PathBudget()) == render_value(value)[:longest]


def test_a_deep_value_is_rendered_without_recursion():
    deep: Any = "x"
    for _ in range(50_000):
        deep = [deep]

    assert render_start(deep, 40, PathBudget()) == "[" * 40


def _find(text: str) -> Callable[[Any, PathBudget], object]:
    return JsonPath.parse(text).find


def _render(text: str) -> Callable[[Any, PathBudget], object]:
    return JsonPathTemplate.parse(text).render


@each_row(
    "evaluate",
    [
        *map(_find, HOSTILE_PATHS[:8]),
        _render("{range ..[*]}{@}{end}"),
        _render("{.spec}" * 200),
        _render("{range .spec[*]}{range .spec[*]}{@}{end}{@}{end}"),
    ],
)
def test_a8_an_expression_never_takes_more_work_than_its_budget(
    evaluate: Callable[[Any, PathBudget], object],
):
    for steps in (10, 1_000, 30_000):
        budget = PathBudget(steps)
        with counted_calls() as calls, suppress(InvalidJsonPath):
            evaluate({"spec": WIDE_VALUES["lists"]}, budget)
        assert calls.count < 10 * steps + 1_000


def test_what_a_budget_allows_is_as_without_one():
    tree = {"spec": {"a": [{"b": 1, "c": "x"}, {"b": 2}], "d": {"b": 3}}}
    for path in ("..b", ".spec.a[?(@.c=='x')].b", ".spec.a[0:2].b", ".spec['a','d']", ".spec.*"):
        parsed = JsonPath.parse(path)
        assert json.dumps(parsed.find(tree, PathBudget(200))) == json.dumps(parsed.find(tree))
