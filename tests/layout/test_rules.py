"""Each cited rule is explained in docs/rules.md, and each rule there is guarded by a test."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_PAGE: Final = "docs/rules.md"
_AREAS: Final = "ABDIPQRSTVW"
_CODE: Final = re.compile(rf"(?<![\w/.%&{{-])[{_AREAS}]\d{{1,2}}(?![\w/%}}])")
_HEADING: Final = re.compile(r'^<a id="(\w+)"></a>\n### (\w+) \S', re.MULTILINE)
_CODE_IN_NAME: Final = re.compile(rf"[{_AREAS.lower()}]\d{{1,2}}")
_TEST: Final = re.compile(r"^\s*(?:async )?def test_(\w+)", re.MULTILINE)
_DOCSTRING: Final = re.compile(r'"""(.*?)"""', re.DOTALL)
_GUARDS: Final = re.compile(r"^Tests?: (.*)\.$", re.MULTILINE)
_TEXTS: Final = (".md", ".py", ".lua", ".toml", ".yaml", ".yml", ".tpl", ".go", ".mjs", "Makefile")
_FOREIGN: Final = ("reports", "site", "uv.lock")
_OUTSIDE: Final = re.compile(
    r"\b(?:SEMANTICS|DESIGN|ACCEPTANCE|COMPAT|FACTS|STYLE)\b|\b(?:PARTS|NUMBERS)(?:\.md| \d)"
    r"|\b[Ss]ections? \d|\.\./shared|/work/shared|\b[Ii]ssue \d|\bT\d{1,2}[.-]\d"
)
_FACTS: Final = ("emulator/", "tests/conformance/", "tests/emulator/")
"""Folders that describe API servers: our rules do not apply there, so none may be cited."""
_HERE: Final = "tests/layout/test_rules.py"


@functools.cache
def _texts() -> dict[str, str]:
    tops = [top for top in ROOT.iterdir() if top.name[0] != "." and top.name not in _FOREIGN]
    files = [file for top in tops for file in (top.rglob("*") if top.is_dir() else [top])]
    names = {str(file.relative_to(ROOT)): file for file in sorted(files)}
    return {
        name: file.read_text(encoding="utf-8")
        for name, file in names.items()
        if name.endswith(_TEXTS) and file.is_file() and "node_modules" not in file.parts
    }


def _named(text: str) -> set[str]:
    """The codes with which the names of tests begin."""
    found: set[str] = set()
    for name in _TEST.findall(text):
        parts = name.split("_")
        found.update(part.upper() for part in itertools.takewhile(_CODE_IN_NAME.fullmatch, parts))
    return found


def _in_docstrings(text: str) -> set[str]:
    """The codes in the docstrings of a Python file."""
    return {code for docstring in _DOCSTRING.findall(text) for code in _CODE.findall(docstring)}


@functools.cache
def _cited(name: str, text: str) -> set[str]:
    """The codes in names of tests, docstrings and comments; of other files in the whole text."""
    if not name.endswith(".py"):
        return set(_CODE.findall(text))
    comments = "\n".join(re.findall(r"#.*", text))
    return _named(text) | _in_docstrings(text) | set(_CODE.findall(comments))


def _guards() -> dict[str, list[str]]:
    """The test files that the page names for each rule."""
    page = _texts()[_PAGE]
    parts = re.split(r"^### (\w+) .*$", page, flags=re.MULTILINE)[1:]
    found = zip(parts[::2], map(_GUARDS.search, parts[1::2]), strict=True)
    return {code: re.findall(r"`([^`]+)`", line[1]) if line else [] for code, line in found}


def test_each_code_means_one_thing_and_has_an_anchor():
    headings = re.findall(r"^### (\w+)", _texts()[_PAGE], re.MULTILINE)
    assert sorted(headings) == sorted(set(headings))
    anchored = _HEADING.findall(_texts()[_PAGE])
    assert [code for _, code in anchored] == headings
    assert [anchor for anchor, _ in anchored] == [code.lower() for code in headings]


def test_each_cited_rule_is_explained():
    rules = _guards()
    unknown = {name: _cited(name, text) - rules.keys() for name, text in _texts().items()}
    assert {name: codes for name, codes in unknown.items() if codes} == {}


def test_facts_of_api_servers_have_no_codes():
    texts = {name: text for name, text in _texts().items() if name.startswith(_FACTS)}
    found = {name: _cited(name, text) for name, text in texts.items()}
    assert {name: codes for name, codes in found.items() if codes} == {}


def test_each_rule_is_guarded_by_tests_of_the_default_run():
    assert [code for code, files in _guards().items() if not files] == []
    files = {file for files in _guards().values() for file in files}
    default = re.compile(r"(?:tests(?!/bench)|examples)/.+/test_\w+\.py")
    assert [file for file in sorted(files) if not default.fullmatch(file)] == []


def test_each_guard_names_its_rule():
    """In the name of a test, or in a docstring."""
    lost: dict[str, dict[str, list[str]]] = {}
    for code, files in _guards().items():
        named = [file for file, codes in _guarded().items() if code in codes]
        if gone := sorted(set(files).difference(named)):
            lost[code] = {"gone": gone, "named by": named}
    assert lost == {}


@functools.cache
def _guarded() -> dict[str, set[str]]:
    tests = {name: text for name, text in _texts().items() if re.search(r"/test_\w+\.py$", name)}
    return {name: _named(text) | _in_docstrings(text) for name, text in tests.items()}


def test_no_file_points_to_a_document_outside_the_repository():
    texts = {name: text for name, text in _texts().items() if name != _HERE}
    found = {name: _OUTSIDE.findall(text) for name, text in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}
