"""The site: every page of this folder, with search; `make docs` builds it and fails at any warning.

The pages are plain Markdown that also reads well on GitHub, so two things are added here: the
navigation, which is the index of README.md, and links to files outside of this folder, which lead
to the repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parent
REPOSITORY: Final = os.environ.get("DOCS_REPOSITORY", "https://github.com/fleetbus/fleetbus")
_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")

project = "fleetbus"
html_title = "fleetbus"
author = "the fleetbus authors"
html_show_copyright = False
root_doc = "README"
extensions = ["myst_parser"]
myst_heading_anchors = 6
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # output of commands is not always valid JSON
html_theme = "furo"
html_baseurl = os.environ.get("DOCS_URL", "")
html_copy_source = False
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}


def outward_links(page: Path, text: str) -> str:
    """Let links to files outside of docs lead to the repository."""

    def replace(link: re.Match[str]) -> str:
        target = (page.parent / link["path"]).resolve()
        if target.is_relative_to(DOCS) or not target.exists():
            return link[0]  # Sphinx reports it if it leads nowhere
        kind = "tree" if target.is_dir() else "blob"
        path = target.relative_to(DOCS.parent)
        return f"{REPOSITORY}/{kind}/main/{path}{link['anchor'] or ''}"

    return _LINK.sub(replace, text)


def navigation(index: str) -> str:
    """Make a table of contents of each section of the index."""
    contents: list[str] = []
    for section in index.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        pages = [
            link["path"].removesuffix(".md")
            for link in _LINK.finditer(body)
            if not link["path"].startswith("../")
        ]
        lines = ["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]
        contents.append("\n".join(lines))
    return "\n\n".join(contents)


def _read(app: Any, name: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(name))
    text = outward_links(page, source[0])
    if name == root_doc:
        text += "\n" + navigation(source[0])
    if name == "decisions/README":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n0*\n```\n"
    source[0] = text


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
