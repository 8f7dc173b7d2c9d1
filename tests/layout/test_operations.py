"""The documents of operations name only what exists: tests, alerts, values and commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.rows import each_row

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "operations").glob("*.md"))
NO_TEST = ("tried by hand", "no test", "nothing of ours")
GUARDED = ("disasters.md", "rotation.md")


def rows(page: str) -> list[list[str]]:
    """The rows of the tables whose last column is `guarded by`."""
    found: list[list[str]] = []
    is_guarded = False
    for line in (ROOT / "docs" / "operations" / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if "|" in line else []
        if not cells:
            is_guarded = False
        elif cells[-1].strip("| ") == "guarded by":
            is_guarded = True
        elif is_guarded and not line.startswith("|---"):
            found.append(cells)
    return found


@each_row("page", PAGES)
def test_every_test_that_is_named_exists(page: Path):
    named = set(re.findall(r"`(tests/[\w./]+)`", page.read_text()))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", GUARDED)
def test_every_disaster_and_every_rotation_names_the_test_that_guards_it_or_says_that_none_does(
    page: str,
):
    found = rows(page)
    assert len(found) >= 12
    last = {row[0]: row[-1].strip("| ") for row in found}
    bare = [name for name, text in last.items() if "`tests/" not in text]
    assert [name for name in bare if not any(word in last[name] for word in NO_TEST)] == []
    assert len(bare) <= 2, "more and more is not guarded"


@each_row("page", PAGES)
def test_every_value_of_the_chart_that_is_named_exists(page: Path):
    values: dict[str, Any] = yaml.safe_load(
        (ROOT / "charts" / "fleetbus" / "values.yaml").read_text()
    )
    tops = "|".join(values)
    missing: list[str] = []
    for path in re.findall(rf"`((?:{tops})(?:\.\w+)+)(?:: [^`]*)?`", page.read_text()):
        node: Any = values
        for part in path.split("."):
            if node in ([], {}):  # the user's own, described by the schema
                break
            if part not in node:
                missing.append(path)
                break
            node = node[part]
    assert missing == []
