"""What the commands share that ask the admin endpoint of a running fleet."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fleetbus_devfleet.stack.plan import Layout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from pathlib import Path

    from fleetbus_emulator.apiserver.admin import AdminClient

Told = TypeVar("Told")
ALL = "all"
WRONG, FAILED = 2, 1

Clusters = Annotated[str, typer.Argument(help="Names of clusters with commas between, or `all`.")]
One = Annotated[str, typer.Argument(help="The name of a cluster.")]
AdminUrl = Annotated[
    str,
    typer.Option(
        "--url", envvar="FLEETBUS_DEV_ADMIN_URL", help="An admin endpoint, instead of --dir."
    ),
]


@contextmanager
def folder_errors(layout: Layout, tell: Callable[[str], None]) -> Generator[None]:
    """Tell, by `tell`, what is wrong with the folder of the stack, and end the command."""
    try:
        yield
    except OSError as error:
        told = f" ({error.filename})" if error.filename not in (None, str(layout.root)) else ""
        tell(f"{layout.root} cannot be used: {error.strerror or error}{told}")
        raise typer.Exit(FAILED) from None


async def names_of(admin: AdminClient, wanted: str) -> list[str]:
    """The clusters that an argument names; unknown ones are refused when they are asked for."""
    if wanted == ALL:
        return [info.name for info in await admin.clusters()]
    names = [name for name in wanted.split(",") if name]
    if not names:  # an empty variable of a script, most likely
        raise typer.BadParameter(f"{wanted!r} names no cluster; `{ALL}` stands for all")
    return names


def run_admin(
    ask: Callable[[AdminClient], Awaitable[Told]],
    folder: Path,
    url: str,
    fail: Callable[[str], None] | None = None,
) -> Told:
    """Ask the admin endpoint; what it refuses is told, by `fail`, and ends the command."""
    import asyncio

    import aiohttp

    from fleetbus_devfleet.commands import lifecycle, report
    from fleetbus_emulator.apiserver.admin import AdminClient, AdminError

    layout = Layout(root=folder.absolute())
    tell = fail or report.print_failure
    if not url:
        with folder_errors(layout, tell):
            state = lifecycle.running_state(layout)
        if state is None or not state.admin_url:
            report.print_nothing_runs(layout)
            raise typer.Exit(FAILED)
        url = state.admin_url

    async def run() -> Told:
        async with AdminClient(url) as admin:
            return await ask(admin)

    try:
        return asyncio.run(run())
    except AdminError as error:
        tell(str(error))
        raise typer.Exit(WRONG if error.field else FAILED) from None
    except aiohttp.InvalidURL:
        tell(f"--url {url} is no URL; `fleetbus dev status` shows that of the admin endpoint")
        raise typer.Exit(WRONG) from None
    except aiohttp.ClientError as error:
        tell(f"the admin endpoint {url} does not answer: {error}")
        raise typer.Exit(FAILED) from None
