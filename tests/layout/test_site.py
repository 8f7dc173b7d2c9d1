"""The site of the documentation: its navigation, and its links to files outside of docs/."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from support.rows import each_row

DOCS = Path(__file__).parents[2] / "docs"
SITE = runpy.run_path(str(DOCS / "conf.py"))
REPOSITORY = SITE["REPOSITORY"]


@each_row(
    ("link", "leads_to"),
    [
        ("../proto/README.md#headers", f"{REPOSITORY}/blob/main/proto/README.md#headers"),
        ("../examples/rollout", f"{REPOSITORY}/tree/main/examples/rollout"),
        ("fuse.md#nowhere", "fuse.md#nowhere"),
        ("#below", "#below"),
        ("https://example.com/../x", "https://example.com/../x"),
        ("../nowhere.md", "../nowhere.md"),
    ],
)
def test_a_link_out_of_docs_leads_to_the_repository(link: str, leads_to: str):
    assert SITE["outward_links"](DOCS / "faq.md", f"[a]({link})") == f"[a]({leads_to})"


def test_the_navigation_has_each_section_of_the_index_and_only_pages_of_docs():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    contents = SITE["navigation"](index).split("```{toctree}\n")[1:]
    captions = [re.findall(r":caption: (.+)", section) for section in contents]
    assert captions == [[head] for head in re.findall(r"^## (.+)$", index, re.MULTILINE)]
    pages = [line for section in contents for line in section.splitlines()[3:-1] if line]
    assert "operations/alerts" in pages
    assert [page for page in pages if not page.startswith("```") and ".." in page] == []
