"""Calls to the admin endpoint of a running fleet, for the commands that need it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fleetbus_devfleet.stack.plan import Layout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from pathlib import Path

    from fleetbus_emulator.apiserver.admin import AdminClient

Answer = TypeVar("Answer")
ALL = "all"
WRONG, FAILED = 2, 1

Clusters = Annotated[str, typer.Argument(help="Comma-separated names of clusters, or `all`.")]
One = Annotated[str, typer.Argument(help="The name of a cluster.")]
AdminUrl = Annotated[
    str,
    typer.Option(
        "--url", envvar="FLEETBUS_DEV_ADMIN_URL", help="An admin endpoint, instead of --dir."
    ),
]


@contextmanager
def folder_errors(layout: Layout, fail: Callable[[str], None]) -> Generator[None]:
    """Report errors of the stack's folder by `fail`, and end the command."""
    try:
        yield
    except OSError as error:
        named = f" ({error.filename})" if error.filename not in (None, str(layout.root)) else ""
        fail(f"{layout.root} cannot be used: {error.strerror or error}{named}")
        raise typer.Exit(FAILED) from None


async def names_of(admin: AdminClient, text: str) -> list[str]:
    """The clusters that an argument names; unknown ones are refused when they are asked for."""
    if text == ALL:
        return [info.name for info in await admin.clusters()]
    names = [name for name in text.split(",") if name]
    if not names:  # an empty variable of a script, most likely
        raise typer.BadParameter(f"{text!r} names no cluster; `{ALL}` stands for all")
    return names


def run_admin(
    ask: Callable[[AdminClient], Awaitable[Answer]],
    folder: Path,
    url: str,
    fail: Callable[[str], None] | None = None,
) -> Answer:
    """Call the admin endpoint; errors are reported by `fail` and end the command."""
    import asyncio

    import aiohttp

    from fleetbus_devfleet.commands import lifecycle, report
    from fleetbus_emulator.apiserver.admin import AdminClient, AdminError

    layout = Layout(root=folder.absolute())
    fail = fail or report.print_failure
    if not url:
        with folder_errors(layout, fail):
            state = lifecycle.running_state(layout)
        if state is None or not state.admin_url:
            report.print_nothing_runs(layout)
            raise typer.Exit(FAILED)
        url = state.admin_url

    async def run() -> Answer:
        async with AdminClient(url) as admin:
            return await ask(admin)

    try:
        return asyncio.run(run())
    except AdminError as error:
        fail(str(error))
        raise typer.Exit(WRONG if error.field else FAILED) from None
    except aiohttp.InvalidURL:
        fail(f"--url {url} is no URL; `fleetbus dev status` shows that of the admin endpoint")
        raise typer.Exit(WRONG) from None
    except aiohttp.ClientError as error:
        fail(f"the admin endpoint {url} does not answer: {error}")
        raise typer.Exit(FAILED) from None
