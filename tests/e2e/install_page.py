"""The commands and files of docs/install.md, in their order, and those that turn on `ha` later.

A block of code counts if `<!-- install: NAME -->` stands above it, and is a file if NAME is
`file PATH`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"
INSTALL_PAGE: Final = DOCS / "install.md"
OPERATIONS_PAGE: Final = DOCS / "operations" / "install.md"
LAST: Final = "remove"
"""The step of the first page before which those of the other one come."""
_BLOCK: Final = re.compile(
    r"^<!-- install: (?P<name>.+?) -->\n```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Step:
    """One block.

    Attributes:
        name: of the commands; of a file, its path.
    """

    name: str
    text: str
    is_file: bool


def all_steps() -> list[Step]:
    """Those of both pages."""
    steps = install_steps(INSTALL_PAGE.read_text())
    (end,) = [at for at, step in enumerate(steps) if step.name == LAST]
    return [*steps[:end], *install_steps(OPERATIONS_PAGE.read_text()), *steps[end:]]


def install_steps(text: str) -> list[Step]:
    """Every marked block."""
    steps: list[Step] = []
    for block in _BLOCK.finditer(text):
        kind, _, path = block["name"].partition(" ")
        is_file = kind == "file"
        steps.append(Step(path if is_file else block["name"], block["text"], is_file))
    return steps
