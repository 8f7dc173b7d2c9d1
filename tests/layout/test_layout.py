"""The layout rules that a linter cannot say."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LINE_LIMIT = 500
# Folders of tools; what is ours is never in them.
FOREIGN = {".venv", ".tools", ".git", "node_modules", "__pycache__", ".hypothesis"}


def _python_files() -> list[Path]:
    return [
        path
        for path in sorted(ROOT.rglob("*.py"))
        if FOREIGN.isdisjoint(path.relative_to(ROOT).parts)
    ]


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def _members() -> list[Path]:
    patterns = _toml(ROOT / "pyproject.toml")["tool"]["uv"]["workspace"]["members"]
    return [
        folder
        for pattern in patterns
        for folder in sorted(ROOT.glob(pattern))
        if (folder / "pyproject.toml").exists()
    ]


def _packages_of(member: Path) -> list[str]:
    wheel = _toml(member / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]
    return wheel["packages"]


def test_no_python_file_is_longer_than_the_limit():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in _python_files()
    }
    assert lengths, "found no Python file at all"
    assert {path: n for path, n in lengths.items() if n > LINE_LIMIT} == {}


def test_import_linter_knows_every_workspace_member():
    # Its list is kept by hand; a package it does not know has no layers.
    listed = _toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["root_packages"]
    assert sorted(listed) == sorted(name for member in _members() for name in _packages_of(member))


def test_the_makefile_knows_every_workspace_member():
    lines = (ROOT / "Makefile").read_text().splitlines()
    listed = next(line for line in lines if line.startswith("MEMBERS :=")).split()[2:]
    assert sorted(listed) == sorted(str(member.relative_to(ROOT)) for member in _members())


def test_every_package_opens_with_its_charter():
    packages = [
        init
        for member in _members()
        for name in _packages_of(member)
        for init in sorted((member / name).rglob("__init__.py"))
    ]
    assert packages, "found no package at all"
    without = [
        str(init.relative_to(ROOT))
        for init in packages
        if not ast.get_docstring(ast.parse(init.read_text()))
    ]
    assert without == []


def test_every_member_is_marked_as_typed():
    untyped = [
        name
        for member in _members()
        for name in _packages_of(member)
        if not (member / name / "py.typed").exists()
    ]
    assert untyped == []


def test_no_test_folder_is_a_package():
    # With --import-mode=importlib an `__init__.py` would make two equally named files clash.
    assert sorted((ROOT / "tests").rglob("__init__.py")) == []


# The code of a README is a string, and a child of the reloader needs one line of plain Python.
PROGRAMS_AS_TEXT = {"tests/proto/test_readme.py", "tests/cli/test_run.py"}


def _hands_over_text(tree: ast.AST) -> bool:
    """Whether a command is `python -c CODE` with code that is not empty."""
    lists = [n.elts for n in ast.walk(tree) if isinstance(n, ast.List | ast.Tuple)]
    lists += [n.args for n in ast.walk(tree) if isinstance(n, ast.Call)]
    return any(
        ast.unparse(first) == "sys.executable"
        and ast.unparse(second) == "'-c'"
        and ast.unparse(third) != "''"
        for words in lists
        for first, second, third in zip(words, words[1:], words[2:], strict=False)
    )


def test_programs_of_tests_are_modules_that_pyright_sees():
    # A rename does not reach code in a string: programs go to tests/scripts or bench/programs.
    texts = {path: path.read_text() for path in _python_files() if "tests" in path.parts}
    found = {
        str(path.relative_to(ROOT))
        for path, text in texts.items()
        if '"-c"' in text and _hands_over_text(ast.parse(text))
    }
    assert found == PROGRAMS_AS_TEXT


def test_the_emulator_knows_no_setting_of_fleetbus():
    # It is used alone, and import-linter sees imports only.
    texts = {
        path: path.read_text() for path in _python_files() if "fleetbus_emulator" in path.parts
    }
    assert texts, "found no emulator"
    assert [
        str(path.relative_to(ROOT)) for path, text in texts.items() if "FLEETBUS_" in text
    ] == []


def test_the_page_of_the_rigs_names_every_module_that_tests_share():
    support = ROOT / "tests" / "support"
    page = (support / "README.md").read_text()
    parts = [path.relative_to(support).with_suffix("").parts for path in support.rglob("*.py")]
    assert parts, "found no module"
    assert [name for name in sorted(map(".".join, parts)) if f"{name}`" not in page] == []
