"""Write docs/reference, and the values of the chart, anew from the code: `make reference`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from reference import agent_manifest, commands, crds, metrics, rest, settings, subjects, values

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"
PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings.page,
    "metrics.md": metrics.page,
    "subjects.md": subjects.page,
    "crds.md": crds.page,
    "cli.md": commands.page,
    "query-api.md": rest.page,
}
_HEAD: Final = "<!-- Made from the code by `make reference`; do not edit. -->\n\n"


def text_of(name: str) -> str:
    """The whole text of one page."""
    return _HEAD + PAGES[name]().rstrip() + "\n"


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(text_of(name), encoding="utf-8")
    agent_manifest.FILE.write_text(agent_manifest.text(), encoding="utf-8")
    values.README.write_text(values.readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
