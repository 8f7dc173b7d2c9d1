"""`fleetbus new`: the folder of a first controller, with its test and its pyproject.toml."""

from __future__ import annotations

import pathlib
from importlib import resources
from typing import Annotated, Final

import typer

from fleetbus.errors import ConfigError

_FILES: Final = ("controller.py", "test_controller.py", "pyproject.toml")
_PLACEHOLDER: Final = "my-project"
"""The name in the files of `new_project`, which work as they stand."""


def new(
    name: Annotated[
        str, typer.Argument(help="Of the folder, the project and its controller: my-operator.")
    ],
) -> None:
    """Make a project: a controller, its test and a pyproject.toml, in a new folder."""
    _check_name(name)
    folder = pathlib.Path(name)
    template = resources.files("fleetbus.cli") / "new_project"
    try:
        folder.mkdir()
        for file in _FILES:
            text = (template / file).read_text(encoding="utf-8")
            (folder / file).write_text(text.replace(_PLACEHOLDER, name), encoding="utf-8")
    except FileExistsError as e:
        raise ConfigError(f"{name} exists already: nothing was changed") from e
    except OSError as e:
        raise ConfigError(f"{name} cannot be made: {e.strerror}") from e
    print(f"made {', '.join(f'{name}/{file}' for file in _FILES)}\n")
    print(f"next:\n  cd {name}")
    print("  python -m pytest              the test, on clusters of its own")
    print("  fleetbus dev up               a fleet on this machine")
    print("  fleetbus run controller.py    the controller; it starts again when you save the file")


def _check_name(name: str) -> None:
    from fleetbus.bus.durables import RESERVED_NAMES  # noqa: PLC0415 -- import cost
    from fleetbus.controller.controller import Controller  # noqa: PLC0415 -- import cost

    Controller(name)
    if name in RESERVED_NAMES or name == "fleetbus":
        raise ConfigError(f"the name {name!r} is reserved: choose another one")
