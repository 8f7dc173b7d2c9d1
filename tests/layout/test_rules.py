"""Each rule that tests stand for has a test of the default run that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
RULES = [
    *(f"w{number}" for number in range(1, 25)),
    *(f"b{number}" for number in range(1, 19)),
    *(f"p{number}" for number in range(1, 18)),
    *(f"q{number}" for number in range(1, 14)),
    *(f"r{number}" for number in range(1, 11)),
    *(f"d{number}" for number in range(1, 16)),
    # The others of these have tests whose names tell the behaviour alone.
    *(f"a{number}" for number in (2, 4, 5, 7, 8)),
    *(f"s{number}" for number in (1, 3, 4, 7, 8)),
]
# The conformance cases and those of the emulator count the facts of API servers, not our rules;
# the fault campaign tests its own checker.
OTHERS = {"conformance", "devfleet", "faults", "support"}


def _names() -> list[str]:
    files = [
        path
        for path in sorted(TESTS.rglob("test_*.py"))
        if OTHERS.isdisjoint(path.relative_to(TESTS).parts)
    ]
    return [
        node.name
        for path in files
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_"
    ]


def test_every_rule_is_named_by_a_test():
    named = {part for name in _names() for part in _rules_of(name)}
    assert [rule for rule in RULES if rule not in named] == []
    newer = {rule for rule in named if rule[0] in {rule[0] for rule in RULES}}.difference(RULES)
    assert newer == set(), "to be put into RULES, or their tests may go unseen"


def _rules_of(name: str) -> list[str]:
    """The rules that a test names: at its beginning, one after the other."""
    found: list[str] = []
    for part in name.removeprefix("test_").split("_"):
        if not re.fullmatch(r"[a-z]\d{1,2}", part):
            break
        found.append(part)
    return found
