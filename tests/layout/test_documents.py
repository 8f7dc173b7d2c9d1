"""The documents name only files that exist, and the map names every package."""

from __future__ import annotations

import re
from pathlib import Path

from support.rows import each_row

ROOT = Path(__file__).parents[2]
FOREIGN = {".venv", ".tools", ".git", "node_modules", ".hypothesis", ".pytest_cache"}
PAGES = [
    path for path in sorted(ROOT.rglob("*.md")) if FOREIGN.isdisjoint(path.relative_to(ROOT).parts)
]
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@each_row("page", PAGES)
def test_every_relative_link_leads_somewhere(page: Path):
    broken: list[str] = []
    for path, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in _anchors(target)
        ):
            broken.append(f"{path}#{anchor}")
    assert broken == []


SIZES = {"README.md": 10_000, "CONTRIBUTING.md": 8_000, "SECURITY.md": 3_000}


@each_row("name", SIZES)
def test_a_front_page_is_short(name: str):
    assert len((ROOT / name).read_bytes()) <= SIZES[name], "move the details to a page of docs/"


def test_the_changelog_says_in_short_what_the_first_release_is():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = text.split("\n## ")[1]
    assert len(newest.encode()) <= 12_000, "work the changes into the text, by area"


def test_a_fragment_of_the_changelog_is_named_for_its_kind():
    names = [path.name for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    kinds = "added|changed|removed|fixed|security"
    assert [name for name in names if not re.fullmatch(rf"[\w-]+\.(?:{kinds})\.md", name)] == []


def test_the_index_links_every_page():
    docs = ROOT / "docs"
    index = LINK.findall((docs / "README.md").read_text(encoding="utf-8"))
    linked = {(docs / path).resolve() for path, _ in index if path}
    pages = {path for path in docs.rglob("*.md") if path.parent.name != "decisions"}
    assert pages - linked == {docs / "README.md"}


def test_decisions_are_numbered_without_a_gap_and_listed():
    folder = ROOT / "docs" / "decisions"
    index = LINK.findall((folder / "README.md").read_text(encoding="utf-8"))
    numbers = [int(path.name[:4]) for path in folder.glob("0*.md")]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert [path for path, _ in index] == sorted(path.name for path in folder.glob("0*.md"))


def _map_rows() -> list[tuple[str, list[str]]]:
    """Return the topic of each row of the map, and the paths that it names."""
    page = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
    lines = [line.strip("| ") for line in page.splitlines() if line.startswith("| ")]
    rows = [line.partition(" | ") for line in lines if not line.startswith("to change")]
    return [(about, re.findall(r"`([^`]+)`", columns)) for about, _, columns in rows]


def test_the_map_names_only_what_exists():
    named = [path for _, paths in _map_rows() for path in paths]
    assert len(named) > 100, "found no map"
    assert [path for path in named if not (ROOT / path).exists()] == []
    folders = [path for path in named if (ROOT / path).is_dir()]
    assert [path for path in folders if not path.endswith("/")] == []


def test_each_row_of_the_map_leads_to_code_and_a_test():
    tests = {about: {path.startswith("tests/") for path in paths} for about, paths in _map_rows()}
    assert [about for about, found in tests.items() if found != {True, False}] == []


def test_the_map_leads_into_every_package():
    named = [path for _, paths in _map_rows() for path in paths]
    packages = {
        str(init.parent.relative_to(ROOT))
        for pattern in ("sdk/fleetbus/*/__init__.py", "services/*/*/*/__init__.py")
        for init in ROOT.glob(pattern)
    }
    assert packages, "found no package at all"
    missing = [one for one in sorted(packages) if not any(p.startswith(f"{one}/") for p in named)]
    assert missing == []
