"""Completion for shells: what the query API knows, within a second, or nothing.

A shell asks the program itself; what goes wrong there is not shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus_cli.complete_variable import COMPLETE

if TYPE_CHECKING:
    from fleetbus_cli.api_client import ApiClient

"""Set by the scripts, to ask for completions."""
_SCRIPTS: Final = {
    "bash": f"""\
_fleetbus() {{
    local IFS=$'\\n'
    COMPREPLY=($(COMP_WORDS="${{COMP_WORDS[*]}}" COMP_CWORD=$COMP_CWORD \\
        {COMPLETE}=complete_bash "$1" 2>/dev/null))
}}
complete -o default -F _fleetbus fleetbus
""",
    "zsh": f"""\
#compdef fleetbus
_fleetbus() {{
    eval $(_TYPER_COMPLETE_ARGS="${{words[1,$CURRENT]}}" {COMPLETE}=complete_zsh \\
        fleetbus 2>/dev/null)
}}
compdef _fleetbus fleetbus
""",
    "fish": f"""\
complete --command fleetbus --no-files --arguments \\
    "(env {COMPLETE}=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \\
    _TYPER_COMPLETE_ARGS=(commandline -cp) fleetbus 2>/dev/null)"
""",
}
SHELLS: Final = tuple(_SCRIPTS)
_SECONDS: Final = 1.0
_MOST: Final = 500
"""Names that are offered."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]*")
"""A shell evaluates what is offered: the name of a ClusterRole may be `$(…)`."""


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", metavar="|".join(SHELLS))],
) -> None:
    """Print the completion script of a shell.

    For this session: `source <(fleetbus completion bash)`; fish sources it from a pipe.
    """
    if shell not in SHELLS:
        raise ConfigError(f"no completion for {shell!r}: it must be one of {', '.join(SHELLS)}")
    printer.block(_SCRIPTS[shell].rstrip())


def answer_shells() -> None:
    """Let the program answer a shell that asks for completions."""
    if COMPLETE in os.environ:
        from typer import completion as shells  # noqa: PLC0415 -- import cost

        shells.completion_init()  # pyright: ignore[reportPrivateImportUsage]


def complete_clusters(context: typer.Context, incomplete: str) -> list[str]:
    """The names of clusters."""
    return _ask(context, incomplete, _clusters)


def complete_types(context: typer.Context, incomplete: str) -> list[str]:
    """The names of types, behind those that are there: `pods,de`."""
    before, comma, last = incomplete.rpartition(",")
    names = _ask(context, last, _types)
    return [f"{before}{comma}{name}" for name in names]


def complete_objects(context: typer.Context, incomplete: str) -> list[str]:
    """A type, then names; or the name behind TYPE/."""
    words: list[str] = list(context.params.get("objects") or [])
    resource, slash, start = incomplete.partition("/")
    if slash:
        names = _ask(context, start, lambda api: _names(api, resource, context))
        return [f"{resource}/{name}" for name in names]
    if not words:
        return complete_types(context, incomplete)
    first = words[0]
    return [
        name
        for name in _ask(context, incomplete, lambda api: _names(api, first, context))
        if name not in words
    ]


def _ask(
    context: typer.Context, start: str, find: Callable[[ApiClient], Iterable[str]]
) -> list[str]:
    """Find the names that begin so; none if the query API does not answer at once."""
    from fleetbus_cli.api_client import ApiClient  # noqa: PLC0415 -- import cost
    from fleetbus_cli.target import ApiFlags  # noqa: PLC0415 -- import cost

    flags: dict[str, Any] = {
        name: context.params.get(f"api_{name}" if name == "url" else name)
        for name in ("url", "token", "token_file", "ca_file")
    }
    try:
        api = ApiClient(ApiFlags(**flags).resolve(), timeout_seconds=_SECONDS, attempts=1)
        names = {name for name in find(api) if name.startswith(start) and _PLAIN.fullmatch(name)}
        return sorted(names)[:_MOST]
    except Exception:  # noqa: BLE001 -- a shell waits, and has no place for errors
        return []


def _clusters(api: ApiClient) -> Iterable[str]:
    return [item["name"] for item in api.get("/fleet/v1/clusters")["items"]]


def _types(api: ApiClient) -> Iterable[str]:
    names: list[str] = []
    for resource in api.get("/fleet/v1/resources")["items"]:
        names += [resource["plural"], *resource["shortNames"]]
    return names


def _names(api: ApiClient, resource: str, context: typer.Context) -> Iterable[str]:
    from fleetbus_cli.objects.query import ObjectQuery  # noqa: PLC0415 -- import cost
    from fleetbus_cli.objects.server_table import ServerTable  # noqa: PLC0415 -- import cost
    from fleetbus_cli.progress import Progress  # noqa: PLC0415 -- import cost

    query = ObjectQuery(
        resource=resource,
        namespace=context.params.get("namespace") or "",
        clusters=context.params.get("cluster") or (),
        limit=_MOST,
    )
    table = ServerTable(api, query)
    return [row[table.name_column] for row in table.rows(Progress(""))]
