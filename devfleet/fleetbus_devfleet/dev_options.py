"""The options that the commands of `fleetbus dev` share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_FOLDER = Path(".fleetbus") / "dev"
"""Where the stack is, below the folder of the caller."""

Folder = Annotated[Path, typer.Option("--dir", help="The folder of the stack.")]


class Output(StrEnum):
    """How a command answers."""

    table = "table"
    json = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to answer.")]
