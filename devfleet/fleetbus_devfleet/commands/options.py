"""The options that the commands of `fleetbus dev` share."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_FOLDER = Path(".fleetbus") / "dev"
"""Where the stack is, below the folder of the caller."""


def nearest_folder(folder: Path) -> Path:
    """The folder that is meant: by default that of a stack that runs here or in a folder above.

    `fleetbus` finds its fleet there, too.
    """
    from fleetbus_devfleet.stack.plan import Layout
    from fleetbus_devfleet.stack.state import is_owned

    if folder != DEFAULT_FOLDER:
        return folder
    here = Path.cwd()
    for place in (here, *here.parents):
        with suppress(OSError):  # a folder above may be closed to us
            if is_owned(Layout(root=place / DEFAULT_FOLDER)):
                return place / DEFAULT_FOLDER
    return folder


Folder = Annotated[
    Path,
    typer.Option(
        "--dir",
        callback=nearest_folder,
        help="Folder of the fleet; the default is also searched for in the parent folders.",
    ),
]


class Output(StrEnum):
    """Output formats of a command."""

    table = "table"
    json = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]


class EnvOutput(StrEnum):
    """Output formats of `dev env`."""

    shell = "shell"
    json = "json"
