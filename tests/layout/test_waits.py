"""Tests patch no private constant, and say why they sleep."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

TESTS = Path(__file__).parents[1]
PACED = ("bench", "faults", "soak", "e2e", "emulator", "conformance", "support/kubelet")
"""Folders whose sleeps need no reason."""
_PRIVATE = re.compile(r"_[A-Z]\w*")
_PLACE = re.compile(r"(\w+\.)+_[A-Z]\w*")
_REASON = re.compile(r"#(?!\s*noqa: [\w, ]+$)(?! pyright: ignore\S*$)\s*\w")
"""A comment, but not a bare directive to a linter."""


def private_constants(text: str) -> list[int]:
    """The lines that patch a private constant, or name one for a patch."""
    if "setattr" not in text and not _PLACE.search(text):  # most files; parsing takes long
        return []
    return sorted({node.lineno for node in ast.walk(ast.parse(text)) if _is_private(node)})


def _is_private(node: ast.AST) -> TypeGuard[ast.expr]:
    if isinstance(node, ast.Constant):
        return bool(_PLACE.fullmatch(str(node.value)))
    if not isinstance(node, ast.Call) or _name_of(node.func) != "setattr":
        return False
    names = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
    return any(_PRIVATE.fullmatch(str(name)) for name in names)


def unexplained_sleeps(text: str) -> Iterator[int]:
    """Yield the lines that sleep without a comment on them, or on the line above."""
    if "sleep(" not in text:
        return
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {
        token.start[0]: token.line.lstrip().startswith("#")
        for token in tokens
        if token.type == tokenize.COMMENT and _REASON.match(token.string)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and _sleeps(node):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if not comments.get(node.lineno - 1) and not any(line in comments for line in lines):
                yield node.lineno


def _sleeps(call: ast.Call) -> bool:
    is_zero = any(isinstance(each, ast.Constant) and each.value == 0 for each in call.args)
    if is_zero or _name_of(call.func) != "sleep":
        return False
    return ast.unparse(call.func) in {"asyncio.sleep", "time.sleep"}


def _name_of(function: ast.expr) -> str:
    """The last part of a dotted name; empty for another expression."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _modules() -> list[tuple[str, str]]:
    modules = [(str(path.relative_to(TESTS)), path.read_text()) for path in TESTS.rglob("*.py")]
    assert modules, "found no test at all"
    return sorted(modules)


def test_no_test_patches_a_private_constant():
    """A component takes its times and limits, with the usual ones as defaults."""
    patched = [f"{name}:{line}" for name, text in _modules() for line in private_constants(text)]
    assert patched == []


def test_every_sleep_of_a_test_says_why():
    """`eventually` waits for something; `never` and `stays` check that nothing happens."""
    sleeps = [
        f"{name}:{line}"
        for name, text in _modules()
        if not name.startswith(tuple(f"{folder}/" for folder in PACED))
        for line in unexplained_sleeps(text)
    ]
    assert sleeps == []


def test_a_planted_patch_is_found():
    constant = "_QUIET"
    planted = (
        'monkeypatch.setattr(module, "_QUIET", 1)\n'
        f'monkeypatch.setattr("a.b.{constant}", 1)\n'
        'setattr(module, "_QUIET", 1)\n'
        f'NAME = "reachability.{constant}"\n'
        'monkeypatch.setattr(module, "QUIET", 1)\n'
        'monkeypatch.setattr(module, "_quiet", 1)\n'
    )
    assert private_constants(planted) == [1, 2, 3, 4]


def test_a_planted_sleep_is_found():
    planted = (
        "asyncio.sleep(0.1)\n"
        "time.sleep(1)  # noqa: ASYNC251\n"
        "time.sleep(1)  # noqa: ASYNC251 -- it blocks\n"
        "asyncio.sleep(0.1)  # the lease runs out\n"
        "# the pace of the load\n"
        "asyncio.sleep(PACE)\n"
        "asyncio.sleep(0)\n"
        "begin()  # not about the next line\n"
        "asyncio.sleep(PACE)\n"
    )
    assert list(unexplained_sleeps(planted)) == [1, 2, 9]
