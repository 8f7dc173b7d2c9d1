"""The commands of `fleetbus` and of the kubectl plugin, from their parsers."""

from __future__ import annotations

import contextlib
import io
import os
import pkgutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import typer
from typer.core import TyperGroup

from fleetbus_cli import kubectl
from fleetbus_cli.app import app
from reference.tables import code, table

_INTRO: Final = """\
# Command line

`fleetbus COMMAND --help` shows the same in a terminal.
Exit status 0 means success, 1 that something failed or was not found, 2 wrong usage.
"""
_ROOT: Final = Path(__file__).parents[2]
_WIDTH: Final = "90"


def page() -> str:
    """Write the page."""
    commands = dict(typer.main.get_group(app).commands)
    for name, place in _added():
        group = typer.main.get_group(pkgutil.resolve_name(place))
        commands |= {name: group} if group.name else group.commands
    found = [
        part for name in sorted(commands) for part in _command(commands[name], "fleetbus", name)
    ]
    return "\n".join([_INTRO, *found, *_plugin()])


def _added() -> Iterator[tuple[str, str]]:
    """The commands of other packages, as their sources declare them."""
    for file in sorted(_ROOT.glob("*/pyproject.toml")) + sorted(_ROOT.glob("*/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        yield from project.get("entry-points", {}).get("fleetbus.commands", {}).items()


def _command(command: Any, above: str, name: str) -> Iterator[str]:
    path = f"{above} {name}"
    if isinstance(command, TyperGroup):
        for inner in sorted(command.commands):
            yield from _command(command.commands[inner], path, inner)
        if not command.invoke_without_command:
            return
    context = typer.Context(command, info_name=path)
    yield f"## {path}\n"
    yield f"{_sentences(command.help or '')}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```\n{path} {usage}\n```\n"
    rows = [row for parameter in command.get_params(context) if (row := _row(parameter, context))]
    if rows:
        yield table(("option", "what it does"), rows)


def _row(parameter: Any, context: typer.Context) -> tuple[str, str] | None:
    record = parameter.get_help_record(context)
    if record is None or "--help" in parameter.opts:
        return None
    return code(record[0]), record[1]


def _sentences(text: str) -> str:
    """Paragraphs on one line each; click marks preformatted ones with a backspace."""
    paragraphs = [part for part in text.replace("\f", "\n\n").split("\n\n") if part.strip()]
    return "\n\n".join(
        f"```\n{part.strip(chr(8)).strip()}\n```" if "\b" in part else " ".join(part.split())
        for part in paragraphs
    )


def _plugin() -> Iterator[str]:
    for verb in ("list", "describe"):
        shown = io.StringIO()
        with mock.patch.dict(os.environ, COLUMNS=_WIDTH), contextlib.redirect_stdout(shown):
            kubectl.main([verb, "--help"])
        yield f"## kubectl multicluster {verb}\n"
        yield f"```\n{shown.getvalue().strip()}\n```\n"
