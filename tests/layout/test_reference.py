"""docs/reference is what the code says."""

from __future__ import annotations

from reference import agent_manifest, values
from reference.main import FOLDER, PAGES, text_of
from support.rows import each_row


@each_row("name", PAGES)
def test_a_page_is_what_the_code_says(name: str):
    assert (FOLDER / name).read_text(encoding="utf-8") == text_of(name), "run `make reference`"


def test_every_page_is_made_from_the_code():
    assert {path.name for path in FOLDER.glob("*.md")} == set(PAGES)


def test_the_values_of_the_chart_are_what_its_schema_says():
    assert values.README.read_text(encoding="utf-8") == values.readme(), "run `make reference`"


def test_the_manifest_of_a_join_is_what_the_chart_of_the_agent_says():
    text = agent_manifest.FILE.read_text(encoding="utf-8")
    assert text == agent_manifest.text(), "run `make reference`"
